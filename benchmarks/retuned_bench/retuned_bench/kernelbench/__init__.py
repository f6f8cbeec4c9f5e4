"""KernelBench's problems as definitions: an untrusted PyTorch model, and a kernel to replace it.

``child`` confines itself and runs a problem's Python; ``model`` is what runs there, on ``tensors``.
``process`` is the parent's handle on a child. ``problem`` makes a definition of a problem,
``evaluate`` takes a kernel through the lab's gates with eager PyTorch as the incumbent, ``improve``
runs generators, ``run`` goes through a folder and computes fast_p. ``benchmark`` does the work of
the command in ``commands``.

This package imports nothing by itself: the child that runs problems gets what it needs, and no
more.
"""
