"""Plots and the HTML report of a run's folder. This package reads files and imports core only."""
