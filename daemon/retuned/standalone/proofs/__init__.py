"""Live proofs of swaps on one machine, their lessons, sentinels, and comparisons end to end."""
