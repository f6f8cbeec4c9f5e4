"""KernelBench, FlashInfer-Bench and data sets: a distribution beside `retuned`."""
