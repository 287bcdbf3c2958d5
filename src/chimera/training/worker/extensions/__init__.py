"""Worker calls of families of strategies: gossip, chunked sums, coded shuffles, fragments."""
