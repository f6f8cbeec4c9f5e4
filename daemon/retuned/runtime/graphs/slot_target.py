"""A slot's launches inside graphs: noted at capture, and made to follow what the slot serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.index import IndexedGraph, Site
from retuned.runtime.graphs.recording import Recorder
from retuned.runtime.graphs.structures import KernelParams
from retuned.runtime.graphs.swap import Change
from retuned.runtime.graphs.variants import change_of
from retuned.runtime.inforce import Swapped
from retuned.runtime.slots import Run, Slot
from retuned.runtime.spec import Key, Refused, allows


class Target(Protocol):
    """Something whose launches are in graphs and may be changed there."""

    name: str

    def wish(self) -> str | None:
        """Return what marks the order in force; None where the original is to run."""
        ...

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change | None:
        """Return what a node is to launch, None for the original; raises `Refused` with why not."""
        ...

    def note_captures(self, on: bool) -> None:
        """Note launches that are recorded from now on, or no longer."""
        ...


class SlotTarget:
    """One slot.

    Parameters
    ----------
    slot
        Of the server.
    name
        Its own among all that are followed.
    recorder
        Returns what notes its launches.
    capturing
        Returns (device, handle) of the current stream while it is captured; else None.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        name: str,
        recorder: Callable[[], Recorder],
        capturing: Callable[[], tuple[int, int] | None],
    ) -> None:
        self.name = name
        self.slot = slot
        self._recorder = recorder
        self._capturing = capturing

    def wish(self) -> str | None:
        """Return the order whose variant the slot runs; None where it runs the original."""
        table = self.slot.table
        order = table.in_force
        if order is None or order.artifact is None or table.state != "swapped":
            return None
        return order.order_id

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change | None:
        """Return what the slot's variant would launch in place of a node.

        Raises
        ------
        Refused
            Whatever keeps the node from being reached.
        """
        order, wish = self.slot.table.in_force, self.wish()
        if wish is None or not isinstance(order, Swapped) or order.variant is None:
            return None
        assert site.note is not None, "only nodes that were noted belong to a slot"
        if not allows(order.bounds, site.note.key):
            return None
        if order.distortion is not None:
            raise Refused("distorted", detail="a fault is played; graphs keep the original")
        calls: GraphCalls = graph.calls
        return change_of(
            order.variant, site.note, original=original, calls=calls, mark=order.order_id
        )

    def note_captures(self, on: bool) -> None:
        """Route launches past the recorder while graphs are captured; not at other times."""
        self.slot.note_captures(self if on else None)

    def wrap(self, key: Key, run: Run) -> Run:
        """Return what notes a launch if it is recorded, and only launches otherwise."""
        capturing, recorder, slot, name = self._capturing, self._recorder, self.slot, self.name
        weights = slot.spec.constant_inputs

        def noted(*inputs: Any) -> Any:  # noqa: ANN401 - whatever the launch returns
            stream = capturing()
            if stream is None:
                return run(*inputs)
            return recorder().launch(
                slot.original, inputs, target=name, key=key, stream=stream, weights=weights
            )

        return noted
