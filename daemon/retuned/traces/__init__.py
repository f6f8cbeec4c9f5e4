"""Trace files of any profiler, each format found by content and read in bounded memory."""

from retuned.traces.readers import TraceStream, open_trace, read_capture, read_trace
from retuned.traces.source import ReadLimits

__all__ = ["ReadLimits", "TraceStream", "open_trace", "read_capture", "read_trace"]
