"""Web page of a cluster: its jobs, its processes, and the curves of running jobs."""
