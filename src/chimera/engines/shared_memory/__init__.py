"""Memory that processes of one machine share: the file, slots for results, notifications, groups."""
