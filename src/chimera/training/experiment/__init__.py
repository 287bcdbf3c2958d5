"""Experiments: the TOML file, its settings, and the objects that its names resolve to."""
