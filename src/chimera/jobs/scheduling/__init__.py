"""Fair-share queue, and the start of an attempt on all its workers or none."""
