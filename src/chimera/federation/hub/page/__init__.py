"""The web page of a hub: its nodes and runs."""
