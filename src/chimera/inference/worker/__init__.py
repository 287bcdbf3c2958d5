"""Workers: the protocol with the coordinator, the process that serves it, and the process that computes."""
