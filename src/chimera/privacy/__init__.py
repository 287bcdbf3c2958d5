"""Protection of a client's update: clipping and noise with their accountant, and secure aggregation."""
