"""What is known of a value in device code without running it: where it comes from, maybe what."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

Tag = tuple[str, str]
"""What a value is made from: ``ptr`` (the address in a pointer), ``val`` (what lies there),
``arg`` (a number given), ``pid`` (the program's place in a dimension), ``tile`` (a range)."""
Plain = int | float | bool | str | None


class _Unknown:
    """Stands for a value that only the device knows."""


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value."""

    tags: frozenset[Tag] = frozenset()
    """Where it comes from."""
    known: Plain | _Unknown = UNKNOWN
    """What it is, where that is known when Triton compiles."""

    def named(self, kind: str) -> frozenset[str]:
        """Return the names of one kind of tag."""
        return frozenset(name for which, name in self.tags if which == kind)


NOTHING = Value()


def merged(values: Iterable[Value]) -> Value:
    """Return what may come from any of several values."""
    return Value(frozenset().union(*(value.tags for value in values)))


_COMPARED: dict[type[ast.cmpop], Callable[[object, object], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: lambda left, right: left is right or left == right,
    ast.IsNot: lambda left, right: not (left is right or left == right),
}
_ORDERED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def compared(operation: ast.cmpop, left: Value, right: Value) -> Plain | _Unknown:
    """Return the answer of a comparison that Triton makes while it compiles.

    Examples
    --------
    >>> compared(ast.Eq(), Value(known="llama"), Value(known="gemma"))
    False
    """
    one, other = left.known, right.known
    if isinstance(one, _Unknown) or isinstance(other, _Unknown):
        return UNKNOWN
    if type(operation) in _COMPARED:
        return bool(_COMPARED[type(operation)](one, other))
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and type(operation) in _ORDERED:
        return bool(_ORDERED[type(operation)](one, other))  # type: ignore[arg-type]
    return UNKNOWN


def truth(value: Value) -> bool | None:
    """Return whether a test holds; None where only the device knows."""
    return None if isinstance(value.known, _Unknown) else bool(value.known)
