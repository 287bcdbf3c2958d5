"""Training: the trainer, the actors it runs, checkpoints and history."""
