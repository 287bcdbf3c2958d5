"""The queue, and the start of an attempt on all its workers or on none."""
