"""The jobs of a cluster in a SQLite file: records, states and transitions."""
