"""Models: anything that learns, seen as flat parameters, a gradient and a loss."""
