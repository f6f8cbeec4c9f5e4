"""Profiler windows of the server, taken by the runtime and written for the node agent.

Without traces of a server no drift is detected. So a thread of the runtime opens
``torch.profiler``'s recording periodically for some milliseconds and writes the file to the folder
in ``RETUNED_TRACE_DIR``. ``schedule`` decides when and for how long, and is pure. ``ownership``
avoids conflicts with the server's own profiler. ``recorder`` is the only module that calls PyTorch.
``folder`` writes complete files or none. ``service`` is the thread.
"""
