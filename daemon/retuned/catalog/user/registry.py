"""Users' own definitions in this process: one registry, filled at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from retuned.catalog.user.inputs import allows
from retuned.catalog.user.records import OwnDefinition
from retuned.catalog.user.validation import faults
from retuned.contract import AxisConst
from retuned.errors import UsageError

LONGEST_VARIABLE = 2**30
_KNOWN: dict[str, OwnDefinition] = {}
_UNCONFINED = False

Unify = Callable[[tuple[tuple[str, ...], ...]], dict[str, int] | None]
"""Lengths by axis if a launch's tensors have the given shapes; None if they do not fit."""


def add(
    definitions: Sequence[OwnDefinition],
    *,
    taken: Callable[[str], bool],
    operators: frozenset[str],
) -> None:
    """Register definitions; repeating one changes nothing.

    `taken` returns whether the catalog has a name. `operators` are those that the catalog
    recognises.

    Raises
    ------
    UsageError
        If a name or operator is taken, or a definition is invalid. Then none is registered.
    """
    fresh: dict[str, OwnDefinition] = {}
    for own in definitions:
        if taken(own.name):
            raise UsageError(f"definition '{own.name}': the catalog has this name; choose another")
        if own.traces.op in operators:
            raise UsageError(
                f"definition '{own.name}': the catalog recognises '{own.traces.op}'; choose "
                "another op_type, or set `traces: {op: ...}` to the operator in your traces"
            )
        other = fresh.get(own.name) or _KNOWN.get(own.name)
        if other is not None and other != own and not _renewed(other, own):
            raise UsageError(f"two different definitions are called '{own.name}'; rename one")
        for fault in faults(own) if other != own else ():
            raise UsageError(f"definition '{own.name}': {fault.place}: {fault.message}")
        fresh[own.name] = own
    _KNOWN.update(fresh)


def _renewed(other: OwnDefinition, own: OwnDefinition) -> bool:
    """Whether a live kernel was lifted again with more observations and the same computation."""
    lifted = other.lifted is not None and own.lifted is not None
    return lifted and other.definition == own.definition


def clear() -> None:
    _KNOWN.clear()
    allow_unconfined(False)


def allow_unconfined(allowed: bool) -> None:
    global _UNCONFINED
    _UNCONFINED = allowed


def unconfined_allowed() -> bool:
    return _UNCONFINED


def find(name: str) -> OwnDefinition | None:
    return _KNOWN.get(name)


def every() -> tuple[OwnDefinition, ...]:
    return tuple(_KNOWN.values())


def match(op: str, *, unify: Unify, dtypes: tuple[str, ...]) -> tuple[str, dict[str, int]] | None:
    """Find the definition of a launch, with its variable axes.

    `unify` derives lengths from the launch's tensors. `dtypes` is empty if the trace lacks them.
    """
    for own in _KNOWN.values():
        if own.traces.op != op or (dtypes and dtypes != own.traces.dtypes):
            continue
        lengths = unify(own.traces.shapes)
        if lengths is not None and _fits(own, lengths):
            return own.name, {axis: lengths[axis] for axis in own.definition.variable_axes}
    return None


def _fits(own: OwnDefinition, lengths: Mapping[str, int]) -> bool:
    definition = own.definition
    constants = {n: a.value for n, a in definition.axes.items() if isinstance(a, AxisConst)}
    variable = {axis: lengths[axis] for axis in definition.variable_axes}
    if any(lengths.get(axis, length) != length for axis, length in constants.items()):
        return False
    if not all(1 <= length <= LONGEST_VARIABLE for length in variable.values()):
        return False
    return allows(own, {**constants, **variable})
