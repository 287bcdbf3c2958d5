"""Submission and control of jobs, from Python and from the command line."""
