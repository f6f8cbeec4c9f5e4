"""Artifacts of kernels: format, delivery, signatures, limits on compilation."""
