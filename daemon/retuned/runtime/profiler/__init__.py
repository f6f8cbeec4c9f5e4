"""Short windows of the server's own profiler, taken by the runtime and left for whoever watches.

A server that nobody profiles has no traces, and without traces no drift is seen. So a thread of
the runtime opens ``torch.profiler``'s recording now and then for some milliseconds and leaves the
file in the folder that ``RETUNED_TRACE_DIR`` names. ``pacing`` decides when and for how long, pure;
``seams`` keeps clear of the server's own profiler; ``recording`` is all that speaks to PyTorch;
``folder`` writes files that are whole or not there; ``service`` is the thread.
"""
