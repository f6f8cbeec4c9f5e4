"""Number formats in NumPy, including bfloat16 and the 8-bit floats.

NumPy supports neither. `ml_dtypes` adds them as types of kind ``V`` with casts, comparisons and
``isnan``. Code must therefore not test ``kind == "f"`` or use ``numpy.finfo``, but the functions of
this module. Casts to float64 are exact for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from retuned.contract import DType

Array = npt.NDArray[Any]

NUMPY: Mapping[DType, np.dtype[Any]] = {
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.INT64: np.dtype(np.int64),
    DType.INT32: np.dtype(np.int32),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}

_COARSER_BITS: Mapping[np.dtype[Any], int] = {
    NUMPY[DType.FLOAT64]: 24,
    NUMPY[DType.FLOAT32]: 8,
    NUMPY[DType.FLOAT16]: 4,
    NUMPY[DType.BFLOAT16]: 4,
    NUMPY[DType.FLOAT8_E4M3FN]: 2,
    NUMPY[DType.FLOAT8_E4M3FNUZ]: 2,
}
"""Significant bits of the next lower precision class that matrix units offer.

float64 to float32, float32 to bfloat16, both halves to float8, float8 to the 4-bit float.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    eps: float
    smallest: float
    largest: float


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are real numbers.

    Examples
    --------
    >>> is_float(NUMPY[DType.BFLOAT16]), is_float(NUMPY[DType.INT8])
    (True, False)
    """
    return dtype in _COARSER_BITS


@cache
def limits_of(dtype: np.dtype[Any]) -> Limits:
    """Return the limits of a floating-point type.

    Examples
    --------
    >>> limits_of(NUMPY[DType.FLOAT8_E4M3FN])
    Limits(eps=0.125, smallest=0.001953125, largest=448.0)
    """
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return Limits(
        eps=float(info.eps), smallest=float(info.smallest_subnormal), largest=float(info.max)
    )


def widened(array: Array) -> Array:
    """Return the same numbers in float64; exact for every floating-point type."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return array.astype(np.float64)


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 numbers to the nearest of another type, and return them in float64.

    Numbers beyond the largest become infinite, or NaN where the type has no infinity.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype).astype(np.float64)


def coarsened(array: Array) -> Array:
    """Round numbers to the significant bits of the next lower precision class, in their own type.

    The range of the exponent is kept: the rounding imitates lost precision, not overflow.

    Examples
    --------
    >>> coarsened(np.array([1.0, 1.01, -3.3], np.float32)).tolist()
    [1.0, 1.0078125, -3.296875]
    """
    scale = 2.0 ** _COARSER_BITS[array.dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        fraction, exponent = np.frexp(array.astype(np.float64))
        return np.ldexp(np.rint(fraction * scale) / scale, exponent).astype(array.dtype)
