"""KernelBench's problems as definitions: a stranger's PyTorch model, and a kernel to replace it.

``walls`` and ``child`` confine and run a problem's Python, ``model`` is what runs there, on
``tensors``; ``probing`` refuses what is no function, and ``process`` is the parent's handle on it.
``describing`` and ``subject`` make a definition of it, ``examining`` takes a kernel through the
lab's gates with eager PyTorch as its incumbent, ``improving`` asks generators, ``running`` goes
through a folder, ``scoring`` computes fast_p.

Nothing is imported here: the child that runs problems gets what it needs, and no more.
"""
