"""Physical lower bounds of a launch time, which expose a broken clock or a skipped launch.

A floor is certain for any launch on a device. A roof is the least time of counted work at the peak
rates of one card; see `roof_us`.
"""

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
    half_gflops: float = 0.0
    """16-bit types in matrix units, dense, 1e9 a second; 0 if unknown."""
    byte_gflops: float = 0.0
    """8-bit types in matrix units, dense, 1e9 a second; 0 if unknown."""

    def operations_per_us(self, operand_bytes: int) -> float:
        """Return the peak rate for operands of a size; 0 if unknown.

        Operands of 4 bytes count at the rate of TF32, half of the 16-bit types' rate, which is
        the fastest way to multiply them.
        """
        rates = {1: self.byte_gflops, 2: self.half_gflops, 4: self.half_gflops / 2}
        return 1e3 * rates.get(operand_bytes, 0.0)


def _card(gbytes_per_s: float, gflops: float, half: float, byte: float, *, cache_mib: int) -> Peak:
    """Return a card from its data sheet: GB/s, then TFLOPS in float32, 16-bit and 8-bit types."""
    return Peak(
        gbytes_per_s=gbytes_per_s,
        gflops=gflops * 1e3,
        cache_bytes=cache_mib * 2**20,
        half_gflops=half * 1e3,
        byte_gflops=byte * 1e3,
    )


CARD_PEAKS: Mapping[str, Peak] = {
    # Vendors' data sheets; matrix rates are dense, half of those "with sparsity".
    "NVIDIA A100-SXM4-40GB": _card(1_555, 19.5, 312, 624, cache_mib=40),
    "NVIDIA A100-SXM4-80GB": _card(2_039, 19.5, 312, 624, cache_mib=40),
    "NVIDIA A100 80GB PCIe": _card(1_935, 19.5, 312, 624, cache_mib=40),
    "NVIDIA L4": _card(300, 30.3, 121, 242, cache_mib=48),
    "NVIDIA L40S": _card(864, 91.6, 362, 733, cache_mib=96),
    "NVIDIA H100 PCIe": _card(2_039, 51.2, 756, 1_513, cache_mib=50),
    "NVIDIA H100 NVL": _card(3_938, 60.0, 835, 1_671, cache_mib=50),
    "NVIDIA H100 80GB HBM3": _card(3_350, 66.9, 989, 1_979, cache_mib=50),
    "NVIDIA H200": _card(4_800, 66.9, 989, 1_979, cache_mib=50),
    "NVIDIA B200": _card(8_000, 80.0, 2_250, 4_500, cache_mib=126),
    "AMD Instinct MI210": _card(1_638, 22.6, 181, 181, cache_mib=8),
    "AMD Instinct MI250X": _card(1_638, 23.9, 191.5, 191.5, cache_mib=8),  # one of two dies
    "AMD Instinct MI300X": _card(5_300, 163.4, 1_307.4, 2_614.9, cache_mib=256),
    "AMD Instinct MI300X VF": _card(5_300, 163.4, 1_307.4, 2_614.9, cache_mib=256),
    "AMD Instinct MI325X": _card(6_000, 163.4, 1_307.4, 2_614.9, cache_mib=256),
    "AMD Instinct MI350X": _card(8_000, 144.2, 2_306.9, 4_613.7, cache_mib=256),
    "AMD Instinct MI355X": _card(8_000, 157.3, 2_516.6, 5_033.2, cache_mib=256),
}
"""By the name that the device's driver reports; a card that is absent is unknown.

A part of a card (MIG) has another name, so it is unknown, too.
"""

GPU_PEAKS: Mapping[str, Peak] = {
    # One card for each architecture; H200's 4.8 TB/s are the bound of sm_90, see `_SAME_ARCH`.
    "sm_80": CARD_PEAKS["NVIDIA A100-SXM4-80GB"],
    "sm_89": CARD_PEAKS["NVIDIA L40S"],
    "sm_90": CARD_PEAKS["NVIDIA H100 80GB HBM3"],
    "sm_100": CARD_PEAKS["NVIDIA B200"],
    "gfx90a": CARD_PEAKS["AMD Instinct MI250X"],
    "gfx942": CARD_PEAKS["AMD Instinct MI300X"],
    "gfx950": CARD_PEAKS["AMD Instinct MI355X"],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one launch, counted from below."""

    moved_bytes: int
    """Bytes between the memory and the chip, each once."""
    operations: int
    """Operations of matrix units; a product with its sum is two."""
    operand_bytes: int
    """Size of one operand."""


def roof_us(work: Work, peak: Peak) -> float:
    """Return the least time of some work on a card, in us: the slower of memory and units.

    Transfers and operations overlap without a gap here, so no launch that does this work is faster.

    Examples
    --------
    >>> card = Peak(gbytes_per_s=1000, gflops=0, cache_bytes=0, half_gflops=100_000)
    >>> roof_us(Work(moved_bytes=10**6, operations=10**6, operand_bytes=2), card)
    1.0
    """
    moved_us = work.moved_bytes / (peak.gbytes_per_s * 1e3)
    rate = peak.operations_per_us(work.operand_bytes)
    return max(moved_us, work.operations / rate if rate else 0.0)


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
