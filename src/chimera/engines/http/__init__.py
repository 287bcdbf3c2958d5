"""The HTTP engine: actors that live in the nodes of other machines, or in the driver."""
