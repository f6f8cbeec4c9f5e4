"""Arguments of one launch, described without keeping their tensors alive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ALIGN = 16
"""Bytes; Triton compiles separate code for pointers with and without this alignment."""
_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("waves_per_eu", "matrix_instr_nonkdim", "kpack"),
)
_LAUNCH = frozenset(("grid", "warmup"))
_MAX_TEXT = 200
_MAX_INT = 2**64


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    kind: str
    """``pointer``, ``int``, ``float``, ``constexpr`` or ``other``."""
    dtype: str
    """Element type of a pointer, such as ``float16``; type of a number; empty for a constexpr."""
    value: Any
    """Value of a number or constexpr, as JSON data."""
    numel: int | None
    aligned16: bool | None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "value": self.value,
            "numel": self.numel,
            "aligned16": self.aligned16,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    arguments: tuple[Argument, ...]
    options: Mapping[str, Any]
    """Compile options, as JSON data."""
    grid: tuple[int, ...]
    raw: tuple[Any, ...] = field(repr=False)
    """Per parameter: the dtype object of a pointer's tensor, or the value itself. No tensors."""
    given: Mapping[str, Any] = field(repr=False)
    """Options as the launch named them."""
    grid_code: Any = field(repr=False)
    """Code of the function that returned the grid; None if the grid was numbers."""


def observe(
    names: Sequence[str],
    constexprs: Sequence[bool],
    values: Sequence[Any],
    *,
    options: Mapping[str, Any],
    compiled: object,
    grid: Sequence[Any],
    grid_code: Any = None,  # noqa: ANN401 - a code object
) -> Observation:
    """Describe a launch.

    Parameters
    ----------
    names, constexprs, values
        Of every parameter, in order.
    compiled
        What Triton launched; None in its interpreter.
    grid
        One to three whole numbers.

    Raises
    ------
    TypeError, ValueError
        If the grid is invalid.
    """
    given = {name: value for name, value in options.items() if name not in _LAUNCH}
    dimensions = [int(length) for length in grid]
    if not 1 <= len(dimensions) <= 3:
        raise ValueError(f"a grid of {len(dimensions)} dimensions")
    described = zip(names, constexprs, values, strict=True)
    return Observation(
        arguments=tuple(_argument(*each) for each in described),
        options=_options(given, getattr(compiled, "metadata", None)),
        grid=(*dimensions, *(1 for _ in range(3 - len(dimensions)))),
        raw=tuple(value.dtype if is_pointer(value) else value for value in values),
        given=given,
        grid_code=grid_code,
    )


def is_pointer(value: object) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "dtype")


def dtype_name(dtype: object) -> str:
    """Return an element type without the ``torch.`` prefix."""
    return str(dtype).removeprefix("torch.")[:_MAX_TEXT]


def plain(value: Any) -> Any:  # noqa: ANN401 - an untrusted argument
    """Return a value as JSON data; other objects become an object that names their type.

    >>> plain(3), plain(1e-6), plain(True), plain(len)
    (3, 1e-06, True, {'object': 'builtin_function_or_method'})
    """
    if value.__class__.__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and abs(value) < _MAX_INT:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is str and len(value) <= _MAX_TEXT:
        return value
    kind = type(value).__name__[:_MAX_TEXT]
    if kind == "dtype":
        return {"dtype": str(value)[:_MAX_TEXT]}
    if kind in ("JITFunction", "InterpretedFunction"):
        function = value.fn
        return {"function": f"{function.__module__}:{function.__qualname__}"[:_MAX_TEXT]}
    return {"object": kind}


def _argument(name: str, constexpr: bool, value: Any) -> Argument:  # noqa: ANN401
    if constexpr or value is None:
        return Argument(name, "constexpr", "", plain(value), None, None)
    if is_pointer(value):
        counted = value.numel() if hasattr(value, "numel") else None
        numel = counted if isinstance(counted, int) else None
        aligned = value.data_ptr() % ALIGN == 0
        return Argument(name, "pointer", dtype_name(value.dtype), None, numel, aligned)
    if isinstance(value, bool):
        return Argument(name, "int", "bool", value, None, None)
    if isinstance(value, int):
        return Argument(name, "int", width(value), plain(value), None, None)
    if isinstance(value, float):
        return Argument(name, "float", "float32", plain(value), None, None)
    return Argument(name, "other", type(value).__name__[:_MAX_TEXT], plain(value), None, None)


def width(value: int) -> str:
    """Return the type that Triton gives a whole number."""
    if -(2**31) <= value < 2**31:
        return "int32"
    return "int64" if value < 2**63 else "uint64"


def _options(given: Mapping[str, Any], metadata: object) -> dict[str, Any]:
    found = {name: plain(value) for name, value in given.items() if name in _OPTIONS}
    for name in _OPTIONS:
        value = plain(getattr(metadata, name, None))
        if value is not None:
            found[name] = value
    return {name: value for name, value in found.items() if value is not None}
