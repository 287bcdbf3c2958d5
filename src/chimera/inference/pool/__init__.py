"""How the coordinator reaches workers."""
