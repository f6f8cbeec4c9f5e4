"""A time that no kernel can beat, so that a broken clock or a skipped launch shows itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from retuned.contract import Definition
from retuned.lab.subject import numpy_dtype, shape_of

_BYTES_PER_US = 512_000.0
"""One core's loads from its nearest cache: 128 bytes a cycle at 4 GHz; none today does more."""


def floor_us(definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
    """Lower bound of one launch, microseconds: every tensor is touched once at first-level speed.

    Far below what is reachable for tensors that lie in memory; it is a bound, not a roofline.
    """
    lengths = definition.lengths(axes)
    total = sum(
        math.prod(shape_of(spec, lengths)) * numpy_dtype(spec).itemsize
        for spec in (*definition.inputs.values(), *definition.outputs.values())
    )
    return total / (_BYTES_PER_US * parts)
