"""The policy of a node: which calls it runs for which requester, and which values it releases."""
