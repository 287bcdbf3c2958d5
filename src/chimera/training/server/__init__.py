"""Parameter servers: the actor that holds a slice of the weights, and its messages."""
