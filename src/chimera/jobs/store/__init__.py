"""Jobs of a cluster: states, records, and their store in SQLite."""
