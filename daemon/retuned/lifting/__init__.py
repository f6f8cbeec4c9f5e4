"""Lifting of live Triton launches: each becomes a definition that the lab tunes as it is."""
