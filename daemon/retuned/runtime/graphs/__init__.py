"""Graphs of CUDA and HIP: kernels inside them are changed without a new capture.

A captured graph is a list of launches with fixed arguments. The drivers of both vendors can replace
function, grid, block, shared memory and arguments of one launch in the instantiated graph, as long
as its source graph still exists. So source graphs are kept (`torch_graphs`), indexed at their
capture (`index`, `launch_notes`), changed all or none (`node_swap`), and follow what the slots
serve (`followers`). The drivers are called by their documented C interfaces (`structures`,
`calls`).

NVIDIA's part is verified on a GPU. AMD's is checked against AMD's own declarations and library and
on a simulated device; it is unverified on hardware.
"""
