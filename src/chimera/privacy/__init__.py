"""What keeps a client's update to itself: clipping and noise with their accountant, and secure aggregation."""
