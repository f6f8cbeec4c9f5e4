"""Shadow checks: sampled launches of a swapped kernel against the original."""
