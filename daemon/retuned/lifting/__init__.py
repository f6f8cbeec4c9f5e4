"""A live Triton launch becomes a definition that the lab tunes as it is."""
