"""Where a variant stands against what the machine could do at best, in words for a prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from retuned.contract import Definition, DType, Workload
from retuned.lab.generators.evolve.device import DeviceBrief
from retuned.stages.verdict import ShapeResult

_BYTES: Mapping[str, int] = {
    DType.FLOAT64: 8,
    DType.INT64: 8,
    DType.FLOAT32: 4,
    DType.INT32: 4,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
}
"""Size of an element; types that are not here have one byte."""


def moved_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    """Return the bytes of all tensors, each touched once."""
    lengths = definition.lengths(axes)
    return sum(
        math.prod([lengths[axis] for axis in spec.shape]) * _BYTES.get(spec.dtype, 1)
        for spec in (*definition.inputs.values(), *definition.outputs.values())
    )


def reduction_flops(definition: Definition, axes: Mapping[str, int]) -> int:
    """Return two operations per element of every product that a contraction needs; 0 without one.

    Axes that inputs have and no output has are summed over, as in a matrix product.
    """
    lengths = definition.lengths(axes)
    kept = {axis for spec in definition.outputs.values() for axis in spec.shape}
    summed = {axis for spec in definition.inputs.values() for axis in spec.shape} - kept
    if not summed:
        return 0
    out = max(
        math.prod([lengths[axis] for axis in spec.shape]) for spec in definition.outputs.values()
    )
    return 2 * out * math.prod([lengths[axis] for axis in summed])


def shape_table(
    definition: Definition, workloads: Sequence[Workload], facts: DeviceBrief
) -> list[str]:
    """Return one line per shape: weight, bytes, operations, and the least time memory allows."""
    total = sum(workload.weight for workload in workloads)
    rows = []
    for workload in workloads:
        size = moved_bytes(definition, workload.axes)
        flops = reduction_flops(definition, workload.axes)
        axes = ", ".join(f"{axis}={length}" for axis, length in workload.axes.items())
        parts = [f"{axes}: {_share(workload.weight, total)} of launches", f"{_size(size)} touched"]
        if flops:
            parts.append(f"{flops / size:.3g} operations a byte")
        if facts.gbytes_per_s:
            least_us = size / (facts.gbytes_per_s * 1e3)
            parts.append(f"memory alone needs {least_us:.3g} us where nothing is cached")
        rows.append(", ".join(parts))
    return rows


def position(definition: Definition, shape: ShapeResult, facts: DeviceBrief) -> str:
    """Return how near to the roof a measured time is.

    Examples
    --------
    >>> from retuned.contract import AxisVar, TensorSpec
    >>> from retuned.stages.verdict import Interval
    >>> spec = TensorSpec(shape=("M",), dtype=DType.FLOAT32)
    >>> d = Definition(name="copy", op_type="copy", axes={"M": AxisVar()}, inputs={"x": spec},
    ...                outputs={"y": spec}, reference="")
    >>> one = Interval(lower=1, point=1, upper=1, confidence=0.9)
    >>> s = ShapeResult(axes={"M": 1000}, weight=1, incumbent_us=1, candidate_us=1, speedup=one)
    >>> position(d, s, DeviceBrief(arch="sm_90", gbytes_per_s=16.0))
    'M=1000: 8 GB/s of tensors touched, 50 % of the memory roof'
    """
    axes = {axis: shape.axes[axis] for axis in definition.variable_axes}
    rate = moved_bytes(definition, axes) / (shape.candidate_us * 1e3)
    flops = reduction_flops(definition, axes) / (shape.candidate_us * 1e3)
    text = f"{', '.join(f'{a}={n}' for a, n in axes.items())}: {rate:.3g} GB/s of tensors touched"
    if facts.gbytes_per_s:
        text += f", {100 * rate / facts.gbytes_per_s:.0f} % of the memory roof"
    if flops:
        text += f", {flops:.3g} GFLOP/s"
        if facts.gflops:
            text += f" ({100 * flops / facts.gflops:.0f} % of the vector units' roof)"
    return text


def _share(weight: float, total: float) -> str:
    return f"{100 * weight / total:.0f} %" if total > 0 else "no"


def _size(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
