"""Captured inputs of launches, stored for experiments."""
