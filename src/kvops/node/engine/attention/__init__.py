"""Attention over the paged pool: one protocol, one reference, later kernels of the same shape."""
