"""Calibration of the simulated engine from the traces of real runs, and predictions with it."""
