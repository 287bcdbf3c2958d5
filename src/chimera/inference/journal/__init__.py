"""The journal: records of all events, results of batches, queries of jobs, and the coordinator's lease."""
