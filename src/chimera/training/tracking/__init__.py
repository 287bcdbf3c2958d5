"""Trackers of experiments: TensorBoard, MLflow, Weights & Biases, Trackio."""
