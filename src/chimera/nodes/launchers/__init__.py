"""Launchers of workers: as Docker containers or as processes of this machine."""
