"""Rules by which servers combine the vectors of workers: one rule a file, by name (docs/explanation/robust.md)."""
