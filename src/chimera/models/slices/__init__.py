"""Layers cut over workers by columns and rows (Shoeybi et al. 2019): each computes a slice, and they meet for the sums."""
