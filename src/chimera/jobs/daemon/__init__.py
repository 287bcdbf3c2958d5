"""Daemon of a cluster: start and deletion of jobs, REST API and web page."""
