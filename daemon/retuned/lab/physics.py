"""Physical lower bounds of a launch time, which expose a broken clock or a skipped launch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from retuned.contract import Definition, ValueLike
from retuned.lab.subject import numpy_dtype, shape_of

_BYTES_PER_US = 512_000.0
"""One core's loads from its nearest cache: 128 bytes a cycle at 4 GHz, above today's cores."""


def floor_us(definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
    """Lower bound of one launch in us: every tensor is touched once at first-level speed.

    It is a bound, not a roofline: far below what tensors in memory allow.
    """
    return _moved_bytes(definition, axes) / (_BYTES_PER_US * parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rates of a GPU."""

    gbytes_per_s: float
    """From its memory, 1e9 bytes a second."""
    gflops: float
    """Float32 outside matrix units, 1e9 a second."""
    cache_bytes: int
    """Last-level cache, where the device's properties do not report it."""


GPU_PEAKS: Mapping[str, Peak] = {
    # Vendors' data sheets: H100 SXM5 (and H200, whose 4.8 TB/s are the bound of both), A100 80 GB,
    # L40S, B200; MI250X (one of two dies), MI300X (256 MB Infinity Cache), MI355X.
    "sm_80": Peak(gbytes_per_s=2_039.0, gflops=19_500.0, cache_bytes=40 * 2**20),
    "sm_89": Peak(gbytes_per_s=864.0, gflops=91_600.0, cache_bytes=96 * 2**20),
    "sm_90": Peak(gbytes_per_s=3_350.0, gflops=66_900.0, cache_bytes=50 * 2**20),
    "sm_100": Peak(gbytes_per_s=8_000.0, gflops=80_000.0, cache_bytes=126 * 2**20),
    "gfx90a": Peak(gbytes_per_s=1_638.0, gflops=23_900.0, cache_bytes=8 * 2**20),
    "gfx942": Peak(gbytes_per_s=5_300.0, gflops=163_400.0, cache_bytes=256 * 2**20),
    "gfx950": Peak(gbytes_per_s=8_000.0, gflops=157_300.0, cache_bytes=256 * 2**20),
}
"""By architecture; unknown if absent."""
_SAME_ARCH = 1.5
"""Devices of one architecture differ this much in bandwidth (H100 3.35 TB/s, H200 4.8 TB/s)."""
_ON_CHIP = 20.0
"""First-level caches of all units together, relative to memory: 33 TB/s on an H100, rounded up."""


def gpu_floor_us(
    definition: Definition, axes: Mapping[str, int], *, arch: str, cache: int
) -> float:
    """Lower bound of one launch on a GPU in us; 0 if the architecture is unknown.

    Every byte is touched once at on-chip speed. Bytes that do not fit the last-level cache come
    from memory, because calls rotate through sets of buffers and caches are flushed between them.
    """
    peak = GPU_PEAKS.get(arch)
    if peak is None:
        return 0.0
    total = _moved_bytes(definition, axes)
    bytes_per_us = peak.gbytes_per_s * 1e3 * _SAME_ARCH
    beyond = total - max(cache, peak.cache_bytes)
    return max(total / (bytes_per_us * _ON_CHIP), beyond / bytes_per_us)


def _moved_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    """Bytes that every launch must touch.

    Lookup tables and outputs that are updated in place count 0, because a launch may touch none of
    them.
    """
    lengths = definition.lengths(axes)
    looked_into = chosen_axes(definition)
    updated = set(definition.updated.values())
    moved = [spec for spec in definition.outputs.values() if spec.updates is None]
    moved += [
        spec
        for name, spec in definition.inputs.items()
        if not looked_into & set(spec.shape) and name not in updated
    ]
    return sum(math.prod(shape_of(spec, lengths)) * numpy_dtype(spec).itemsize for spec in moved)


def chosen_axes(definition: Definition) -> frozenset[str]:
    """Return the axes along which an input's numbers choose the data that is read.

    An index up to ``C - 1`` chooses among C rows, and offsets divide their own axis. A launch may
    read one row of such a tensor or all of it, so its size is not a bound.
    """
    found: set[str] = set()
    for spec in definition.inputs.values():
        rule = spec.values
        if rule is None or rule.like is ValueLike.UNIFORM:
            continue
        for bound in (rule.low, rule.high):
            if isinstance(bound, str):
                found |= set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", bound))
        if rule.like is ValueLike.OFFSETS:
            found |= set(spec.shape)
    return frozenset(found & definition.axes.keys())
