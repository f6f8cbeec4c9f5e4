"""Sampled inputs of launches, kept for experiments."""
