"""Engines: where actors run. One engine a file or folder."""
