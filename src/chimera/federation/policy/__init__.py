"""The policy of a node: which calls it runs for which requester, and what may leave it."""
