"""What servers make of the vectors that workers sent: one rule a file, by name (docs/robust.md)."""
