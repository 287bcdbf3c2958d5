"""Recovery from lost workers and servers, and the injection of faults."""
