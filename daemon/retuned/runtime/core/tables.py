"""Tables: what a slot's launches call under one epoch, by the lengths of their variable axes.

The meaning of a table never changes. The guard is evaluated once per key, when the key is first
seen under a table; only the keys launched most are routed beforehand, so that a flip takes
microseconds however many keys there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from retuned.runtime.schema import Key, allows

if TYPE_CHECKING:
    from retuned.runtime.core.slots import Slot

MAX_KEYS = 4096
"""Keys counted one by one per slot; later ones are counted together."""
MAX_ROUTES = 2 * MAX_KEYS
"""Routes kept per table; a server that shows more keys than this starts over. Without a place for
keys beyond those counted, each of their launches would be routed anew."""

Run = Callable[..., Any]
Route = tuple[list[int], Run]


class InForce(Protocol):
    """An order carried out: knows its variant, keeps its statistics."""

    mark: str
    """Names the order among all of this process, also of other slots: what graphs count by."""
    artifact: str | None
    epoch: int
    bounds: tuple[tuple[int, int, int], ...]

    def route(self, key: Key) -> Run:
        """Return what a launch of these lengths calls; only asked for keys within the bounds."""
        ...


class Reservoir(Protocol):
    """Takes samples of what launches are given; `captures` has it."""

    def wrap(self, key: Key, run: Run) -> Run:
        """Return what a launch of these lengths calls in place of `run`."""
        ...


class Recorder(Protocol):
    """Notes launches that are recorded into a graph; `graphs.slot_target` has it."""

    def wrap(self, key: Key, run: Run) -> Run:
        """Return what a launch of these lengths calls in place of `run`."""
        ...


class Table(dict[Any, Route]):
    """Key to (launch counter, what to call) under one epoch; fills itself as keys are seen."""

    __slots__ = ("_slot", "in_force", "repeats", "state")

    def __init__(self, slot: Slot, *, in_force: InForce | None, state: str) -> None:
        super().__init__()
        self._slot = slot
        self.in_force = in_force
        """The last order; None before the first. Its artifact runs only in state ``swapped``."""
        self.state = state
        """``original``, ``swapped``, ``bypassed``, or ``tripped:`` and a reason."""
        self.repeats: dict[Any, Any] = {}
        """What whoever leads launches here remembers of them; gone with the table."""

    def __missing__(self, raw: Any) -> Route:  # noqa: ANN401 - an int or a tuple of them
        """First sight of a key: evaluate the guard, remember the answer."""
        slot = self._slot
        run = slot.original
        order = self.in_force
        if order is not None and self.state == "swapped":
            key = slot.as_key(raw)
            if allows(order.bounds, key):
                run = order.route(key)
        if slot.reservoir is not None:
            run = slot.reservoir.wrap(slot.as_key(raw), run)
        if slot.recorder is not None:
            run = slot.recorder.wrap(slot.as_key(raw), run)
        if len(self) >= MAX_ROUTES:
            self.clear()  # counts are kept in the slot's cells
        route = self[raw] = (slot.cell(raw), run)
        return route


class Untouched(Table):
    """The first table of a forked child: tells that a launch came, each time a key is new."""

    __slots__ = ("_tell",)

    def __init__(self, slot: Slot, *, tell: Callable[[], None]) -> None:
        super().__init__(slot, in_force=None, state="original")
        self._tell = tell

    def __missing__(self, raw: Any) -> Route:  # noqa: ANN401 - an int or a tuple of them
        """Tell, then do what every table does."""
        self._tell()
        return super().__missing__(raw)
