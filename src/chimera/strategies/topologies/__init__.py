"""Topologies, one a file: the neighbours of each worker, and their mixing weights."""
