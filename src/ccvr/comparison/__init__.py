"""Several runs beside each other: algorithms × seeds on the same clients, and candidates of hyperparameters."""
