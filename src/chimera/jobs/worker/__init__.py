"""Worker process of a cluster, and its lease for one attempt."""
