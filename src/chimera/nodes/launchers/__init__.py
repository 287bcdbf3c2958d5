"""Where workers are started: containers or processes of this machine."""
