"""Slots: the one place in the server where a kernel may be changed.

A call reads one reference, finds the route for the lengths of its variable axes and counts. The
reference points to a `Table` (`tables`). Swap, rollback, bypass and trip each build a new table and
store it in one assignment, so a call uses one epoch or the next and never a mixture.

Counting is one ``+=`` on a list cell. CPython with its global lock never switches threads between
the read and the write of that statement, so no count is lost; a free-threaded build may lose a few.
This module does not import PyTorch: a tensor is any object with ``shape``.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any

from retuned.runtime.core.tables import (
    MAX_KEYS,
    InForce,
    Recorder,
    Reservoir,
    Run,
    Table,
    Times,
    Untouched,
)
from retuned.runtime.schema import Key, Refused, Spec, Tensor, parse_spec

log = logging.getLogger(__name__)

PREROUTED = 64
"""Keys routed before a flip, those launched most."""
MAX_CONSTANTS = 4096
"""Sets of weights recorded per slot; a slot with more uses changing tensors and is not followed."""

_ODD = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions of looking up inputs that are not the tensors of the definition."""


class Slot:
    """A callable that replaces the server's kernel.

    Parameters
    ----------
    definition
        Definition as JSON data (axes, inputs, outputs), or the parsed one.
    original
        The server's own code: takes the inputs in the definition's order, returns its output, or a
        tuple of them. It runs whenever a variant may not.
    key
        Computes the lengths of the variable axes from the inputs; read from the shapes by default.

    Raises
    ------
    Refused
        If the definition is invalid, or its outputs update inputs: a function must return new
        tensors.
    """

    TAKES_IN_PLACE = False
    __slots__ = (
        "__weakref__",
        "_cells",
        "_constants",
        "_lock",
        "_notes",
        "_table",
        "call",
        "on_change",
        "original",
        "other",
        "recorder",
        "reservoir",
        "spec",
        "times",
    )

    def __new__(cls, *_args: object, **_kwargs: object) -> Slot:
        """Give every slot a separate class: calling it then costs one call, not two."""
        return object.__new__(type(cls.__name__, (cls,), {"__slots__": ()}))

    def __init__(
        self,
        definition: Mapping[str, Any] | Spec,
        original: Run,
        *,
        key: Callable[..., Key] | None = None,
    ) -> None:
        self.spec = definition if isinstance(definition, Spec) else parse_spec(definition)
        if self.spec.in_place and not self.TAKES_IN_PLACE:
            detail = f"{self.spec.name} changes its inputs; only launches that are intercepted may"
            raise Refused("definition-invalid", detail=detail)
        self.original = original
        self._constants: dict[int, tuple[weakref.ref[Any], ...]] = {}
        self._notes = 0
        self.on_change: Callable[[], None] | None = None
        """Called after an order or a state has become active; must not raise."""
        self.restart()
        self.call = _call_of(self, key)
        type(self).__call__ = staticmethod(self.call)  # type: ignore[method-assign]

    def __call__(self, *inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
        """Launch; the class of each slot has its closure here."""
        return self.call(*inputs)

    # --- control thread -------------------------------------------------------------------------

    @property
    def table(self) -> Table:
        return self._table

    def commit(self, in_force: InForce) -> None:
        with self._lock:
            self._install(in_force, "original" if in_force.artifact is None else "swapped")
        if self.on_change is not None:
            self.on_change()

    def replace(self, expected: InForce | None, *, state: str) -> bool:
        """Change the state of the active order.

        False if another order is active, or it has tripped.
        """
        with self._lock:
            table = self._table
            if table.in_force is not expected or table.state.startswith("tripped:"):
                return False
            self._install(expected, state)
        if self.on_change is not None:
            self.on_change()
        return True

    def restart(self, *, first_launch: Callable[[], None] | None = None) -> None:
        """Forget orders and counts: at the start, and in a forked child.

        Parameters
        ----------
        first_launch
            Called with the first launch after this, possibly with later ones too; must not raise.
        """
        self.reservoir: Reservoir | None = None
        self.recorder: Recorder | None = None
        self.times: Times | None = None
        self._lock = threading.Lock()
        self._cells: dict[Any, list[int]] = {}
        self.other = [0]
        self._table = Table(self, in_force=None, state="original")
        if first_launch is not None:
            self._table = Untouched(self, tell=first_launch)

    def sample_inputs(self, reservoir: Reservoir | None) -> None:
        """Start to sample the inputs of launches; None ends that."""
        with self._lock:
            self.reservoir = reservoir
            self._install(self._table.in_force, self._table.state)

    def note_captures(self, recorder: Recorder | None) -> None:
        """Start to record launches that are captured into a graph; None ends that."""
        with self._lock:
            if self.recorder is not recorder:
                self.recorder = recorder
                self._install(self._table.in_force, self._table.state)

    def time_launches(self, times: Times | None) -> None:
        """Start to count and time launches for a live proof; None ends that."""
        with self._lock:
            if self.times is not times:
                self.times = times
                self._install(self._table.in_force, self._table.state)

    def _install(self, in_force: InForce | None, state: str) -> None:
        """Build a table with the most frequent keys routed, then store it: the flip.

        A return to the original routes no keys in advance: routes are quick to find, and it must
        not wait.
        """
        table = Table(self, in_force=in_force, state=state)
        if state == "swapped":
            cells = self._cells.copy()
            for raw in nlargest(PREROUTED, cells, key=lambda raw: cells[raw][0]):
                table[raw]
        self._table = table

    # --- observed launches ------------------------------------------------------------------------

    def launches(self) -> dict[Key, int]:
        """Return launches since start per lengths of the variable axes, without `other`."""
        return {self.as_key(raw): cell[0] for raw, cell in self._cells.copy().items()}

    def total(self) -> int:
        return self.other[0] + sum(cell[0] for cell in self._cells.copy().values())

    def constants(self) -> list[tuple[Tensor, ...]]:
        alive = []
        for references in dict.copy(self._constants).values():
            values = tuple(reference() for reference in references)
            if all(value is not None for value in values):
                alive.append(values)
        return alive

    def as_key(self, raw: Any) -> Key:  # noqa: ANN401 - an int or a tuple of them
        """Return lengths as a tuple; slots of one variable axis use the bare number internally."""
        return raw if isinstance(raw, tuple) else (raw,)

    def cell(self, raw: Any) -> list[int]:  # noqa: ANN401 - see as_key
        """Return the counter of a key; the common counter if there are too many keys."""
        cell = self._cells.get(raw)
        if cell is None:
            if len(self._cells) >= MAX_KEYS:
                return self.other
            cell = self._cells.setdefault(raw, [0])
        return cell

    def note(self, inputs: tuple[Tensor, ...]) -> None:
        """Keep weak references to the weights of a launch.

        A variant may need them in another layout.
        """
        self._notes += 1
        known = self._constants
        if self._notes > MAX_CONSTANTS:
            log.warning("%s: constant inputs keep changing, no longer followed", self.spec.name)
            self._constants = _Everything(known)
            return
        positions = self.spec.constant_inputs
        identity = id(inputs[positions[0]])

        def forget(_: object) -> None:
            known.pop(identity, None)

        try:
            known[identity] = tuple(weakref.ref(inputs[index], forget) for index in positions)
        except TypeError:
            self._constants = _Everything(known)  # not tensors: they cannot be followed


class _Everything(dict[int, tuple["weakref.ref[Any]", ...]]):
    """Contains every key: ends the recording without a branch in the call."""

    def __contains__(self, item: object) -> bool:
        return True


def _call_of(slot: Slot, key: Callable[..., Key] | None) -> Run:
    """Return the closure that a launch goes through; this is the hot path.

    If a call cannot be looked up (not tensors, fewer inputs, no such dimension), the original
    decides whether to accept it: the call is counted under `other` and forwarded.
    """
    weights = slot.spec.constant_inputs
    places = [slot.spec.locate(axis) for axis in slot.spec.variable_axes]
    found = [place for place in places if place is not None]
    if key is None and len(found) == 1:
        place = found[0]
        return _one_axis_noting(slot, place, weights[0]) if weights else _one_axis(slot, place)
    reader = key or _key_reader(found)

    def call(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
        try:
            cell, run = slot._table[reader(*inputs)]
            if weights and id(inputs[weights[0]]) not in slot._constants:
                slot.note(inputs)
        except _ODD:
            return _odd(slot, inputs)
        cell[0] += 1
        return run(*inputs)

    return call


def _one_axis(slot: Slot, place: tuple[int, int]) -> Run:
    """Return the closure for one variable axis: the bare length is the key, no tuple is made."""
    index, dim = place

    def call(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
        try:
            cell, run = slot._table[inputs[index].shape[dim]]
        except _ODD:
            return _odd(slot, inputs)
        cell[0] += 1
        return run(*inputs)

    return call


def _one_axis_noting(slot: Slot, place: tuple[int, int], weight: int) -> Run:
    """Return the closure for one variable axis and a weight to follow, the usual case."""
    index, dim = place

    def call(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
        try:
            cell, run = slot._table[inputs[index].shape[dim]]
            if id(inputs[weight]) not in slot._constants:
                slot.note(inputs)
        except _ODD:
            return _odd(slot, inputs)
        cell[0] += 1
        return run(*inputs)

    return call


def _key_reader(places: list[tuple[int, int]]) -> Callable[..., Key]:
    if len(places) == 2:
        (first, first_dim), (second, second_dim) = places
        return lambda *inputs: (inputs[first].shape[first_dim], inputs[second].shape[second_dim])
    return lambda *inputs: tuple(inputs[index].shape[dim] for index, dim in places)


def _odd(slot: Slot, inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401 - as the original
    slot.other[0] += 1
    return slot.original(*inputs)
