"""Federations: a hub that relays calls, and nodes that dial out to it, keep their data and set their own rules."""
