"""Native code variants, for CPU and GPU, and their memory."""
