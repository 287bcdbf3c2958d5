"""The audit log: one line for each request, each with the hash of the line before."""
