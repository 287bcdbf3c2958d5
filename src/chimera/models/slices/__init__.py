"""Tensor-parallel layers, split by columns and rows (Shoeybi et al. 2019): workers compute slices, all-reduce sums them."""
