"""Trace files of any profiler, each format found by content and read in bounded memory."""

from retuned.adapters.traces.limits import ReadLimits
from retuned.adapters.traces.reading import TraceStream, open_trace, read_capture, read_trace

__all__ = ["ReadLimits", "TraceStream", "open_trace", "read_capture", "read_trace"]
