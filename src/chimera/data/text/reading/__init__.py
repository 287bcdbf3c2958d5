"""Reading of text files: bytes at any position, and blocks of words."""
