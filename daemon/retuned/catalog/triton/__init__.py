"""Incumbent Triton kernels of the catalog."""
