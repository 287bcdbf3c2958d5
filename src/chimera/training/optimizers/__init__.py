"""Optimizers over one flat vector, and learning-rate schedules."""
