"""The process that runs one attempt of a job, on this machine or on Ray."""
