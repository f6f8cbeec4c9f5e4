"""What each kernel computes, in float64 NumPy: one file per family, shipped in the definition."""
