"""Parameter servers: the actor that holds a slice of the weights, and what it sends."""
