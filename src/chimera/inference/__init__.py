"""Fair-share inference: several models share a cluster, and no loss of a process loses a query (docs/how-to/inference.md)."""
