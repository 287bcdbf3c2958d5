"""Readers of arrays, tables and files, which convert them to checked float32 inputs and targets."""
