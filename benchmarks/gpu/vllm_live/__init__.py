"""A real vLLM with Retuned: found, tuned, swapped and measured, on a machine with a GPU."""
