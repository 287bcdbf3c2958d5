"""Web page of a cluster for inference: jobs, rates, workers, events."""
