"""Codecs: what travels instead of a vector. One codec a file."""
