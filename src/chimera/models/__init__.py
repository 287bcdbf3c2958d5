"""Models of any kind behind one interface: flat parameters, a gradient and a loss."""
