"""A node: its connection to the hub, the calls that it runs, and the answers that it keeps until they have arrived."""
