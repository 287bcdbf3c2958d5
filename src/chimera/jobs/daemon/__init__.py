"""The daemon of a cluster: it accepts, starts and deletes jobs, and serves the REST API and the web page."""
