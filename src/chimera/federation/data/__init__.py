"""The data of a node: its rows, their division into training and test rows, and the figures that drivers get."""
