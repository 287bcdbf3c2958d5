"""The code that runs in the process of a Ray actor."""
