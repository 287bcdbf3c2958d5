"""Runs whose driver has no data: descriptions of the nodes' data, their agreement, and evaluation on the nodes' rows."""
