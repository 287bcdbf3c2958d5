"""Comparisons: an experiment over a grid of settings, with one process for each cell."""
