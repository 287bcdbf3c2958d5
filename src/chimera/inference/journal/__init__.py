"""Where the coordinator writes what happens before it acts, and what says who is the coordinator."""
