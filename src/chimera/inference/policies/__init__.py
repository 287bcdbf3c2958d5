"""Which job a free worker serves next; one policy a file."""
