"""Certificates of a federation: the authority of the hub, invitations, and how a node or driver joins."""
