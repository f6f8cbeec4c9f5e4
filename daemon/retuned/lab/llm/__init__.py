"""Client of a model's endpoint: HTTP, budget, transcript."""
