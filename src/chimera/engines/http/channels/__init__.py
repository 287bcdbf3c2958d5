"""Actors as the driver holds them, each with the thread that executes its calls in order."""
