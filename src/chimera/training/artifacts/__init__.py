"""Files of a run: checkpoints, weights, the model's signature, the run's folder and result."""
