"""Tunables: kernels whose launch configuration the server chooses, and tables that change it."""
