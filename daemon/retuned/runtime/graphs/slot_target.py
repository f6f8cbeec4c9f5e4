"""A slot's launches inside graphs: noted at capture, and made to follow what the slot serves."""

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
    """Something whose launches are in graphs and may be changed there."""

    @property
    def name(self) -> str:
        """Its own among all that are followed."""
        ...

    @property
    def slot(self) -> Slot:
        """What decides who runs."""
        ...

    def is_mine(self, site: Site) -> bool:
        """Whether a node is a launch of this."""
        ...

    def admitted(self, site: Site) -> str | None:
        """Return what marks the order whose variant is to run at a node; None for the original."""
        ...

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change:
        """Return what an admitted node is to launch; raises `Refused` with why it cannot."""
        ...

    def note_captures(self, on: bool) -> None:
        """Note launches that are recorded from now on, or no longer."""
        ...


def serving(slot: Slot, key: Key) -> Swapped | None:
    """Return the order whose variant all launches of these lengths run; None for the original.

    A node launches one or the other: while an order is a canary, graphs stay with the original.
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
    slot
        Of the server.
    name
        Its own among all that are followed.
    recorder
        Returns what notes its launches.
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
        """Its own among all that are followed."""
        return self._name

    @property
    def slot(self) -> Slot:
        """Of the server."""
        return self._slot

    def is_mine(self, site: Site) -> bool:
        """Whether a node was noted as a launch of the slot."""
        return site.note is not None and site.note.target == self.name

    def admitted(self, site: Site) -> str | None:
        """Return the order whose variant is to run at a node; None for the original."""
        assert site.note is not None, "only nodes that were noted belong to a slot"
        order = serving(self.slot, site.note.key)
        return None if order is None else order.mark

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change:
        """Return what the slot's variant would launch in place of a node.

        Raises
        ------
        Refused
            Whatever keeps the node from being reached.
        """
        assert site.note is not None, "only nodes that were noted belong to a slot"
        order = serving(self.slot, site.note.key)
        if order is None or order.variant is None:
            raise Refused("not-prepared", detail="the order was taken back this moment")
        if order.distortion is not None:
            raise Refused("distorted", detail="a fault is played; graphs keep the original")
        return change_of(
            order.variant, site.note, original=original, calls=graph.calls, mark=order.mark
        )

    def note_captures(self, on: bool) -> None:
        """Route launches past the recorder while graphs are captured; not at other times."""
        self.slot.note_captures(self if on else None)

    def wrap(self, key: Key, run: Run) -> Run:
        """Return what notes a launch if it is recorded, and only launches otherwise."""
        capturing, recorder, slot, name = self._capturing, self._recorder, self.slot, self.name
        weights, recapturing = slot.spec.constant_inputs, self._recapturing

        def noted(*inputs: Any) -> Any:  # noqa: ANN401 - whatever the launch returns
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
    """Return what records the variant, and the original where the variant cannot be."""

    def launch(*inputs: Any) -> Any:  # noqa: ANN401 - as the original
        assert order.variant is not None, "an order that serves has one"
        try:
            output = order.variant.launcher(key)(inputs)
        except Exception as error:  # the variant is a stranger: whatever it raises, serve
            order.count_error(error)
            return slot.original(*inputs)
        if isinstance(output, Ineligible):
            return slot.original(*inputs)
        recorded.append(order.mark)
        return output

    return launch
