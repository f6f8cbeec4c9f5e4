"""Libdevice functions for Triton's interpreter, where they have no implementation.

``triton.language.extra.libdevice`` declares them; a compiler for a GPU links the vendor's code. The
interpreter has no such code, so that a kernel with ``libdevice.tanh`` could not be tested without a
GPU. This module computes them with NumPy, for the element types that the libraries support;
rounding in the last place may differ from a device's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_MARK = "_retuned_computes"
_WIDE = ("fp32", "fp64")
_HOME = "triton.language.extra.libdevice"

Module = Any
Numbers = Any


def mend_libdevice(interpreter: Module) -> None:
    """Make the functions that the contract allows compute in the interpreter; idempotent."""
    from triton.language.extra import libdevice

    for name, compute in _functions(interpreter.np).items():
        found = getattr(libdevice, name, None)
        if found is not None and not getattr(found, _MARK, False):
            setattr(libdevice, name, _computing(interpreter, name, compute))


def _computing(
    interpreter: Module, name: str, compute: Callable[..., Numbers]
) -> Callable[..., Any]:
    """Return the replacement of one function; it keeps module and name, which identify it."""
    np, tl = interpreter.np, interpreter.tl

    def computing(*args: Any) -> Any:  # noqa: ANN401 - Triton's tensors
        given = [interpreter._implicit_cvt(getattr(each, "value", each)) for each in args]
        kind = given[0].dtype.scalar
        if kind.name not in _WIDE:
            raise TypeError(f"libdevice.{name} is for float32 and float64, not {kind.name}")
        with np.errstate(all="ignore"):  # a device computes these without a warning
            found = np.asarray(compute(*(each.handle.data for each in given)))
        block = any(each.type.is_block() for each in given)
        type_of = tl.block_type(kind, list(found.shape)) if block else kind
        like = given[0].handle.data.dtype
        return tl.tensor(interpreter.TensorHandle(found.astype(like), kind), type_of)

    computing.__name__ = computing.__qualname__ = name
    computing.__module__ = _HOME
    setattr(computing, _MARK, True)
    return computing


def _functions(np: Module) -> Mapping[str, Callable[..., Numbers]]:
    def away(x: Numbers) -> Numbers:
        return np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x)

    found = {
        "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin,
        "asinh": np.arcsinh, "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh,
        "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh,
        "div_rn": np.divide, "erf": np.vectorize(math.erf, otypes=[float]),
        "erfc": np.vectorize(math.erfc, otypes=[float]), "exp": np.exp, "exp2": np.exp2,
        "expm1": np.expm1, "floor": np.floor, "fma": _fma(np), "fmod": np.fmod, "hypot": np.hypot,
        "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2,
        "nearbyint": np.rint, "pow": np.power, "rint": np.rint, "round": away,
        "rsqrt": lambda x: 1.0 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt,
        "sqrt_rn": np.sqrt, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc,
    }  # fmt: skip
    fast = {
        "cosf": "cos", "dividef": "div_rn", "expf": "exp", "log10f": "log10", "log2f": "log2",
        "logf": "log", "powf": "pow", "sinf": "sin", "tanf": "tan", "tanhf": "tanh",
    }  # fmt: skip
    return found | {f"fast_{name}": found[plain] for name, plain in fast.items()}


def _fma(np: Module) -> Callable[..., Numbers]:
    """Multiply in float64, where the product of two float32 is exact."""

    def fma(x: Numbers, y: Numbers, z: Numbers) -> Numbers:
        return x.astype(np.float64) * y + z

    return fma
