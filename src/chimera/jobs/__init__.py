"""Jobs that nobody has to wait for: submitted, queued, started on all their workers or on none, followed, fetched."""
