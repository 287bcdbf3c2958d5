"""Submission and control of jobs from Python and the command line."""
