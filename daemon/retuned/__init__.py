"""Retuned."""
