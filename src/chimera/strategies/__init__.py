"""Strategies: who does what next. One strategy a file."""
