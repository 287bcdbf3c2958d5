"""The coordinator: it dispatches batches to workers and writes every event to the journal."""
