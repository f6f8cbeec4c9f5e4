"""Input families that random numbers alone would not exercise.

Uniform positive inputs hide accumulators of half the precision, and ordinary ones never reach a
branch for infinities. Each family exposes one kind of error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from retuned.catalog.entry import Array
from retuned.contract import DType
from retuned.errors import UsageError
from retuned.lab.number_formats import NUMPY, limits_of

Floats = npt.NDArray[np.float32]

PLANTED = {"planted-nan": np.nan, "planted-pos-inf": np.inf, "planted-neg-inf": -np.inf}
COMMON = ("randn", "randn-small", "randn-large", "outlier", "zeros-rows", *PLANTED)


def activations(rng: np.random.Generator, shape: tuple[int, ...], family: str) -> Floats:
    """Make one activation; rows are the first axis, channels the last.

    Raises
    ------
    UsageError
        If the family is unknown.
    """
    values = rng.standard_normal(shape, dtype=np.float32)
    shapers: dict[str, Callable[[], Floats]] = {
        "randn": lambda: values,
        "randn-small": lambda: values * np.float32(1e-3),
        "randn-large": lambda: values * np.float32(1e3),
        "mean-1000": lambda: values + np.float32(1000.0),
        "logits-60": lambda: values * np.float32(60.0),
        "outlier": lambda: _outliers(rng, values),
        "zeros-rows": lambda: _zero_rows(rng, values),
        "denormals": lambda: values * np.float32(1e-39),
        "max-finite": lambda: np.tanh(values) * np.float32(3.38e38),
        "exact-integer": lambda: rng.integers(-4, 5, shape).astype(np.float32),
    }
    if family in PLANTED:
        return planted(rng, values, PLANTED[family])
    if family not in shapers:
        raise UsageError(f"no activations '{family}'; there are {', '.join([*shapers, *PLANTED])}")
    return shapers[family]()


def planted(rng: np.random.Generator, values: Floats, what: float) -> Floats:
    if values.size:
        values.reshape(-1)[rng.integers(values.size)] = what
    return values


def in_format(values: Floats, dtype: DType) -> Array:
    """Round to an element type; numbers beyond an 8-bit float become its largest number."""
    kind = NUMPY[dtype]
    if kind.itemsize == 1:
        largest = np.float32(limits_of(kind).largest)
        values = np.clip(values, -largest, largest)
    return values.astype(kind)


def exact_factors(
    rng: np.random.Generator, rows: int, columns: int, depth: int
) -> tuple[Floats, Floats]:
    """Make integers x[rows, depth] and w[columns, depth] whose products sum exactly.

    Every number is exact in 8 bits and every sum in float32, in any order. Partial sums rise to
    four times the depth and return to almost zero: an accumulator of bfloat16 loses count from 256
    on, one of float16 from 2048 on. A small result does not hide that.
    """
    x = rng.integers(0, 9, (rows, depth))
    x[:, depth // 2 :] *= -1
    return x.astype(np.float32), rng.integers(0, 5, (columns, depth)).astype(np.float32)


def int8_weights(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Full range, -128 included: kernels that negate or take absolute values are exposed."""
    return rng.integers(-128, 128, shape).astype(np.int8)


def _outliers(rng: np.random.Generator, values: Floats) -> Floats:
    """One channel in a hundred, at least one, is a hundred times as large, as in trained models."""
    width = values.shape[-1]
    if width:
        channels = rng.choice(width, size=max(1, width // 100), replace=False)
        values[..., channels] *= np.float32(100.0)
    return values


def _zero_rows(rng: np.random.Generator, values: Floats) -> Floats:
    """Every other row is zero; whether the first one is zero is random."""
    values[int(rng.integers(2)) :: 2] = 0.0
    return values
