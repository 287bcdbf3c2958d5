"""Fair-share inference: several models share a cluster, and no death loses a query (docs/how-to/inference.md)."""
