"""Federations: nodes that keep their data and set their own rules."""
