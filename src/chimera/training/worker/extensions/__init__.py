"""What workers do in particular families of strategies: gossip, chunked sums, coded shuffles, fragments."""
