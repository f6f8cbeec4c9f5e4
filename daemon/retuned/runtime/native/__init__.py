"""Variants in native code, on a CPU and on a GPU, and their memory."""
