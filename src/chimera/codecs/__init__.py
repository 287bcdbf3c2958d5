"""Codecs, one a file: encodings of vectors for messages."""
