"""Stage 1, trace: what was launched.

A reader yields LaunchRecords; this stage decides what a raw row means (names, units, sanity) and
how launches replayed from a graph get the shapes known from its capture. Pure.
"""

from retuned.stages.trace.capture import align_capture
from retuned.stages.trace.meaning import (
    LATEST_NS,
    LONGEST_NS,
    NAME_CHARS,
    blocks_from_work_items,
    disbelief,
    geometry,
    is_contiguous,
    normalise_kernel_name,
    parse_ns,
    us_to_ns,
)
from retuned.stages.trace.records import CapturedLaunch, LaunchRecord, ShapeSource, Skip

__all__ = [
    "LATEST_NS",
    "LONGEST_NS",
    "NAME_CHARS",
    "CapturedLaunch",
    "LaunchRecord",
    "ShapeSource",
    "Skip",
    "align_capture",
    "blocks_from_work_items",
    "disbelief",
    "geometry",
    "is_contiguous",
    "normalise_kernel_name",
    "parse_ns",
    "us_to_ns",
]
