"""What the processes of a cluster share: its folder, its log, and connections between daemon and workers."""
