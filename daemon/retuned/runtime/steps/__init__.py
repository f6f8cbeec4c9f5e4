"""Steps of a server: safe points between two steps, and records of steps for proofs."""
