"""Frames between drivers, hubs and nodes, and connections that are opened again after each break."""
