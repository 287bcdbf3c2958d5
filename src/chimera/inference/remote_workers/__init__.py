"""Workers on other machines: they dial the cluster's address, and the coordinator sends its requests over these connections."""
