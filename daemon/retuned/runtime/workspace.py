"""Named scratch: memory that the launches of one variant hand on to each other.

What a variant declares is data from a stranger: element types, shapes as expressions, whether it is
zeroed. Here it is checked and sized; nothing is allocated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.grid import Grid, parse_grid
from retuned.runtime.spec import DTYPES, Refused

MAX_SCRATCH_BYTES = 2**30
"""Most that all named scratch of one launch may take together."""
MAX_WORKSPACES = 16
"""Most named pieces of scratch."""
MAX_RANK = 8
"""Most dimensions of one."""
_ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}\Z")
_FIELDS = {"name", "dtype", "shape", "zeroed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One named piece of scratch."""

    name: str
    """Parameter that gets it."""
    dtype: str
    """Element type without the ``torch.`` prefix."""
    zeroed: bool
    """Filled with zeros at the start of every launch."""
    shape: tuple[Grid, ...]
    """One expression a dimension."""
    integers: Mapping[str, int]
    """Integer params, for the expressions."""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def names(self) -> frozenset[str]:
        """Axes and params that the shape depends on."""
        return frozenset().union(*(each.names for each in self.shape))

    def shape_at(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the length of every dimension.

        Raises
        ------
        Refused
            ``scratch-invalid`` if one is below 1 or an expression cannot be computed.
        """
        known = {**self.integers, **lengths}
        try:
            return tuple(each.at(known)[0] for each in self.shape)
        except Refused as error:
            raise _invalid(f"'{self.name}': {error.detail}") from error

    def bytes_at(self, lengths: Mapping[str, int]) -> int:
        """Return its size.

        Raises
        ------
        Refused
            ``scratch-invalid``, or ``scratch-too-large`` beyond `MAX_SCRATCH_BYTES`.
        """
        size = math.prod(self.shape_at(lengths)) * self.item_bytes
        if size > MAX_SCRATCH_BYTES:
            raise _too_large(f"'{self.name}' takes {size} bytes", lengths)
        return size


def parse_workspaces(
    declared: Sequence[Mapping[str, Any]], *, params: Mapping[str, int | str], axes: Sequence[str]
) -> tuple[Workspace, ...]:
    """Read what a variant declares.

    Parameters
    ----------
    declared
        One object a piece: ``name``, ``dtype``, ``shape`` and maybe ``zeroed``.
    params
        Of the variant; whole numbers among them may be in shapes.
    axes
        Names of all axes.

    Raises
    ------
    Refused
        ``scratch-invalid``, naming the piece.
    """
    if not isinstance(declared, (list, tuple)) or len(declared) > MAX_WORKSPACES:
        raise _invalid(f"is no list of at most {MAX_WORKSPACES} pieces")
    integers = {name: value for name, value in params.items() if type(value) is int}
    return tuple(_workspace(each, integers, {*integers, *axes}) for each in declared)


def sizes_at(workspaces: Sequence[Workspace], lengths: Mapping[str, int]) -> list[int]:
    """Return bytes of each at these lengths of all axes.

    Raises
    ------
    Refused
        ``scratch-invalid``, or ``scratch-too-large`` where they take more than `MAX_SCRATCH_BYTES`
        together.
    """
    sizes = [each.bytes_at(lengths) for each in workspaces]
    if sum(sizes) > MAX_SCRATCH_BYTES:
        raise _too_large(f"{len(sizes)} pieces take {sum(sizes)} bytes together", lengths)
    return sizes


def _workspace(body: object, integers: Mapping[str, int], known: Collection[str]) -> Workspace:
    if not isinstance(body, Mapping) or not {"name", "dtype", "shape"} <= set(body) <= _FIELDS:
        raise _invalid("a piece needs name, dtype and shape, and may say zeroed")
    name, dtype, shape = body["name"], body["dtype"], body["shape"]
    zeroed = body.get("zeroed", False)
    if not isinstance(name, str) or not _SYMBOL.match(name):
        raise _invalid(f"{name!r:.80} is no plain name")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _invalid(f"'{name}' has the element type {dtype!r:.40}")
    if not isinstance(zeroed, bool):
        raise _invalid(f"'{name}': zeroed is true or false")
    if not isinstance(shape, (list, tuple)) or not 1 <= len(shape) <= MAX_RANK:
        raise _invalid(f"'{name}' needs one to {MAX_RANK} dimensions")
    try:
        parsed = tuple(parse_grid([each], known) for each in shape)
    except Refused as error:
        raise _invalid(f"'{name}': {error.detail}") from error
    return Workspace(name=name, dtype=str(dtype), zeroed=zeroed, shape=parsed, integers=integers)


def _invalid(problem: str) -> Refused:
    return Refused("scratch-invalid", detail=f"scratch: {problem}"[:400])


def _too_large(problem: str, lengths: Mapping[str, int]) -> Refused:
    at = ", ".join(f"{name}={length}" for name, length in lengths.items())
    detail = f"scratch: {problem} at {at}; the limit is {MAX_SCRATCH_BYTES}"
    return Refused("scratch-too-large", detail=detail[:400])
