"""The loop of a run, and its work between rounds."""
