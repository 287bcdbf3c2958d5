"""Topologies: who talks to whom, and with which weights. One topology a file."""
