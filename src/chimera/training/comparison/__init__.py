"""Comparing: one experiment run over a grid of settings, each cell a run of its own in a process of its own."""
