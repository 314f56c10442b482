"""Class moments → a new head: Gaussians, virtual features, re-training, the table."""
