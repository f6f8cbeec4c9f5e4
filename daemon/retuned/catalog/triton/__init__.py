"""Triton spaces and incumbents of the catalog."""
