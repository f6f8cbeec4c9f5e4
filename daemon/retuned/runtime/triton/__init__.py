"""Variants in Triton: source contract, compilation, launch."""
