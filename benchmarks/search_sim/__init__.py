"""Surfaces that a parameter search is measured on, and the replay of a search over them."""
