"""Groups of Ray actors: meeting, connection, collectives."""
