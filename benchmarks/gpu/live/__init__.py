"""A Llama-shaped model with third-party Triton kernels, retuned while it serves on a GPU."""
