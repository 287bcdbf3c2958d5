"""The node's side: the actors that a node hosts for drivers."""
