"""Language model client: HTTP, budget, transcript."""
