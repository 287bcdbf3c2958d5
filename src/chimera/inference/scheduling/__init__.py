"""Scheduling without I/O: the state of jobs, the scheduler, its simulation, and measures of fairness."""
