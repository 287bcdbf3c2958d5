"""Models of the simulated machines: network, compute, availability."""
