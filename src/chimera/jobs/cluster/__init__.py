"""Folder and log of a cluster, and connections between its daemon and its workers."""
