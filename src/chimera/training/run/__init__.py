"""The loop of a run, and what it does between rounds."""
