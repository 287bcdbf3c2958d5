"""Files of a job: bundle, content store, and archive of the run."""
