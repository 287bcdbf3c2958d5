"""Runs whose driver has no data: what nodes say about their rows, what they agree on, and the evaluation on their rows."""
