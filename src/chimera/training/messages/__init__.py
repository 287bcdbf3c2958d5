"""Small values that workers and servers exchange beside vectors: rejected gradients, tallies, keys of messages."""
