"""Slot target: a slot's launches inside graphs, recorded at capture, which follow the slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.core.active_order import Ineligible, Swapped
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Run
from retuned.runtime.graphs.index import IndexedGraph, Site
from retuned.runtime.graphs.launch_notes import Recorder
from retuned.runtime.graphs.node_swap import Change
from retuned.runtime.graphs.structures import KernelParams
from retuned.runtime.graphs.variants import change_of
from retuned.runtime.schema import Key, Refused, allows


class Target(Protocol):
    @property
    def name(self) -> str:
        """Unique among all targets."""
        ...

    @property
    def slot(self) -> Slot: ...

    def is_mine(self, site: Site) -> bool: ...

    def admitted(self, site: Site) -> str | None:
        """Return the mark of the order whose variant must run at a node; None for the original."""
        ...

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change:
        """Return what an admitted node must launch; raises `Refused` if it cannot."""
        ...

    def note_captures(self, on: bool) -> None: ...


def serving(slot: Slot, key: Key) -> Swapped | None:
    """Return the order whose variant all launches of these lengths run; None for the original.

    A node launches one or the other: while an order is a canary, graphs keep the original.
    """
    table = slot.table
    order = table.in_force
    if not isinstance(order, Swapped) or order.variant is None or table.state != "swapped":
        return None
    if order.live.table is not None or not order.live.serves(key):
        return None
    return order if allows(order.bounds, key) else None


class SlotTarget:
    """One slot.

    Parameters
    ----------
    name
        Unique among all targets.
    capturing
        Returns (device, handle) of the current stream while it is captured; else None.
    recapturing
        Returns whether graphs are being captured again, with variants.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        name: str,
        recorder: Callable[[], Recorder],
        capturing: Callable[[], tuple[int, int] | None],
        recapturing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = name
        self._slot = slot
        self._recorder = recorder
        self._capturing = capturing
        self._recapturing = recapturing

    @property
    def name(self) -> str:
        return self._name

    @property
    def slot(self) -> Slot:
        return self._slot

    def is_mine(self, site: Site) -> bool:
        return site.note is not None and site.note.target == self.name

    def admitted(self, site: Site) -> str | None:
        assert site.note is not None, "only nodes that were noted belong to a slot"
        order = serving(self.slot, site.note.key)
        return None if order is None else order.mark

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change:
        """Return what the slot's variant would launch in place of a node.

        Raises
        ------
        Refused
            With the reason why the node cannot be changed.
        """
        assert site.note is not None, "only nodes that were noted belong to a slot"
        order = serving(self.slot, site.note.key)
        if order is None or order.variant is None:
            raise Refused("not-prepared", detail="the order has just been rolled back")
        if order.distortion is not None:
            raise Refused("distorted", detail="a fault is injected; graphs keep the original")
        return change_of(
            order.variant, site.note, original=original, calls=graph.calls, mark=order.mark
        )

    def note_captures(self, on: bool) -> None:
        self.slot.note_captures(self if on else None)

    def wrap(self, key: Key, run: Run) -> Run:
        """Return a function that launches, and records the launch if it is captured."""
        capturing, recorder, slot, name = self._capturing, self._recorder, self.slot, self.name
        weights, recapturing = slot.spec.constant_inputs, self._recapturing

        def noted(*inputs: Any) -> Any:  # noqa: ANN401 - result of the launch
            stream = capturing()
            if stream is None:
                return run(*inputs)
            order = serving(slot, key) if recapturing() else None
            recorded: list[str] = []
            launch = slot.original if order is None else _recording(slot, key, order, recorded)
            return recorder().launch(
                launch, inputs, target=name, key=key, stream=stream, weights=weights,
                recorded=lambda: recorded[0] if recorded else None,
            )  # fmt: skip

        return noted


def _recording(slot: Slot, key: Key, order: Swapped, recorded: list[str]) -> Run:
    """Return a function that launches the variant, or the original if the variant cannot run."""

    def launch(*inputs: Any) -> Any:  # noqa: ANN401 - as the original
        assert order.variant is not None, "an active order has one"
        try:
            output = order.variant.launcher(key)(inputs)
        except Exception as error:  # untrusted code: the original serves, whatever is raised
            order.count_error(error)
            return slot.original(*inputs)
        if isinstance(output, Ineligible):
            return slot.original(*inputs)
        recorded.append(order.mark)
        return output

    return launch
