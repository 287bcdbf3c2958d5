"""Engines, which run actors. Each engine has a package of its own."""
