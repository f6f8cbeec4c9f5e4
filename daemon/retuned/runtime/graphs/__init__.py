"""Kernels inside captured CUDA and HIP graphs, changed without a new capture.

A graph that was captured is a list of launches with fixed arguments. The drivers of both vendors
can replace function, grid, block, shared memory and arguments of one of them in the instantiated
graph, as long as the graph it was made from still exists. So graphs are kept (`torch_graphs`),
indexed at their capture (`index`, `recording`), changed all or none (`swap`), and follow what the
slots serve (`following`). The drivers are called by their documented C interfaces (`structures`,
`calls`).

NVIDIA's part is verified on a GPU. AMD's is checked against AMD's own declarations and library and
on a played device; it is unverified on hardware.
"""
