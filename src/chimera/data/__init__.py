"""Data sets, how they are parted among workers, and in which order they are read."""
