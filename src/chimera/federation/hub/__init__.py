"""The hub: a server that relays the calls of drivers to nodes."""
