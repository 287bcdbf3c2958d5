"""Driver of one attempt of a job, on this machine or on Ray; its progress file and results."""
