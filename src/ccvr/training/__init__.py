"""An algorithm at work: a client's part, rounds, workers, checkpoints, fine-tuning."""
