"""Real weeks of traffic, turned into kernel histograms by a small simulator of batching."""
