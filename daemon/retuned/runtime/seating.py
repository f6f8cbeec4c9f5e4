"""Which slots a process has: who gets one, who is given it back, and what graphs follow them."""

from __future__ import annotations

from collections.abc import Callable

from retuned.runtime.artifact import Artifact
from retuned.runtime.graphs.hosting import HostedGraphs
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.seats import LoadedSlot
from retuned.runtime.slots import Slot
from retuned.runtime.spec import Refused, Tensor
from retuned.runtime.weights import PackedWeights


class SlotRegistry:
    """The slots of a process, each with what is loaded for it.

    Parameters
    ----------
    interception
        Of Triton's launches in this process; None where there is none.
    """

    def __init__(self, interception: Interception | None) -> None:
        self.seats: dict[str, LoadedSlot] = {}
        """By the name of the slot."""
        self.graphs = HostedGraphs(interception)
        """Captured graphs, which follow the slots."""
        self._interception = interception

    def add(self, slot: Slot) -> None:
        """Put a slot under control.

        Raises
        ------
        Refused
            ``slot-exists``.
        """
        if slot.spec.name in self.seats:
            raise Refused("slot-exists", detail=f"{slot.spec.name} has a slot already")
        self._seat(slot)

    def of(self, definition: str) -> LoadedSlot:
        """Return the slot of a definition.

        Raises
        ------
        Refused
            ``unknown-slot``.
        """
        seat = self.seats.get(definition)
        if seat is None:
            raise Refused("unknown-slot", detail=f"this server has no slot {definition!r:.150}")
        return seat

    def slots(self) -> list[Slot]:
        """Return the slots there are."""
        return [seat.slot for seat in list(self.seats.values())]

    def adopt(self, definition: str, artifact: Artifact) -> LoadedSlot:
        """Make a slot for a kernel whose launches are intercepted, if that is what it is for.

        Raises
        ------
        Refused
            ``unknown-slot`` or ``definition-mismatch``, or as `Interception.adopt`.
        """
        if self._interception is None or artifact.intercept is None:
            return self.of(definition)
        if artifact.spec.name != definition:
            raise Refused("definition-mismatch", detail=f"not made for slot {definition}")
        return self._seat(self._interception.adopt(artifact))

    def disown(self, slot: Slot) -> None:
        """Give a kernel whose slot was made here back to the server."""
        if isinstance(slot, KernelSlot) and self._interception is not None:
            del self.seats[slot.spec.name]
            self.graphs.remove(slot)
            self._interception.close(slot)

    def restart(self, *, first_launch: Callable[[], None] | None) -> None:
        """Return every slot to the original with nothing loaded; see `Host.reset`."""
        for name, seat in list(self.seats.items()):
            # first, for its new lock: another thread of a child's parent may have held the old one
            seat.slot.restart(first_launch=first_launch)
            self.graphs.remove(seat.slot)
            if isinstance(seat.slot, KernelSlot):  # the kernel is the server's own again
                del self.seats[name]
                if self._interception is not None:
                    self._interception.close(seat.slot)
                continue
            self.seats[name] = LoadedSlot(seat.slot, PackedWeights(served=self._weights))
            if first_launch is not None:  # a forked child goes on
                self.graphs.add(seat.slot)

    def _seat(self, slot: Slot) -> LoadedSlot:
        seat = self.seats[slot.spec.name] = LoadedSlot(slot, PackedWeights(served=self._weights))
        self.graphs.add(slot)
        return seat

    def _weights(self) -> list[Tensor]:
        """Return the weights that launches of any slot have shown: they lie with the model."""
        return [weight for slot in self.slots() for group in slot.constants() for weight in group]
