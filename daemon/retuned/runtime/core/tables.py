"""Tables: what a slot's launches call under one epoch, by the lengths of their variable axes.

The meaning of a table never changes. The guard is evaluated once per key, at its first launch under
a table. Only the most launched keys are routed in advance, so that a flip takes microseconds
whatever the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from retuned.runtime.schema import Key, allows

if TYPE_CHECKING:
    from retuned.runtime.core.slots import Slot

MAX_KEYS = 4096
"""Keys counted separately per slot; further ones are counted together."""
MAX_ROUTES = 2 * MAX_KEYS
"""Routes kept per table; beyond it the table is cleared.

It exceeds `MAX_KEYS`, so that launches of keys that are not counted separately are not routed every
time.
"""

Run = Callable[..., Any]
Route = tuple[list[int], Run]


class InForce(Protocol):
    mark: str
    """Identifies the order among all slots of this process; graphs count launches by it."""
    artifact: str | None
    epoch: int
    bounds: tuple[tuple[int, int, int], ...]

    def route(self, key: Key) -> Run:
        """Return what a launch of these lengths calls; only called for keys within the bounds."""
        ...


class Reservoir(Protocol):
    """Takes samples of the inputs of launches; implemented in `captured.reservoir`."""

    def wrap(self, key: Key, run: Run) -> Run: ...


class Recorder(Protocol):
    """Records launches that are captured into a graph; implemented in `graphs.slot_target`."""

    def wrap(self, key: Key, run: Run) -> Run: ...


class Times(Protocol):
    """Counts and times launches for a live proof; implemented in `steps.launch_times`."""

    def wrap(self, key: Key, run: Run) -> Run: ...


class Table(dict[Any, Route]):
    """Maps a key to (launch counter, function to call) under one epoch; filled as keys occur."""

    __slots__ = ("_slot", "in_force", "repeats", "state")

    def __init__(self, slot: Slot, *, in_force: InForce | None, state: str) -> None:
        super().__init__()
        self._slot = slot
        self.in_force = in_force
        """The last order; None before the first. Its artifact runs only in state ``swapped``."""
        self.state = state
        """``original``, ``swapped``, ``bypassed``, or ``tripped:`` and a reason."""
        self.repeats: dict[Any, Any] = {}
        """Cache of the code that dispatches launches here; discarded with the table."""

    def __missing__(self, raw: Any) -> Route:  # noqa: ANN401 - an int or a tuple of them
        """Handle the first launch of a key: evaluate the guard, store the result."""
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
        if slot.times is not None:
            run = slot.times.wrap(slot.as_key(raw), run)
        if len(self) >= MAX_ROUTES:
            self.clear()  # counts are kept in the slot's cells
        route = self[raw] = (slot.cell(raw), run)
        return route


class Untouched(Table):
    """The first table of a forked child: calls `tell` at each launch of a new key."""

    __slots__ = ("_tell",)

    def __init__(self, slot: Slot, *, tell: Callable[[], None]) -> None:
        super().__init__(slot, in_force=None, state="original")
        self._tell = tell

    def __missing__(self, raw: Any) -> Route:  # noqa: ANN401 - an int or a tuple of them
        self._tell()
        return super().__missing__(raw)
