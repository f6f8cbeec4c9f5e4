"""Slot registry: the slots of a process, their loaded variants, and the graphs that follow."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.artifacts.loaded import LoadedVariant
from retuned.runtime.captured.reservoir import Reservoir
from retuned.runtime.core.active_order import Variant
from retuned.runtime.core.epochs import Ledger
from retuned.runtime.core.orders import Order
from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.service import HostedGraphs
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import Refused, Tensor, parse_bounds
from retuned.runtime.shadow.sampler import Compare
from retuned.runtime.shadow.selfcheck import self_check
from retuned.runtime.torch_ops.frames import OperatorSlot

log = logging.getLogger(__name__)

MAX_RESIDENT = 4
"""Variants kept loaded per slot for instant rollbacks."""
COUNTED = (LoadedVariant, KernelVariant)


@dataclass(slots=True)
class LoadedSlot:
    slot: Slot
    packed: PackedWeights
    resident: OrderedDict[str, Variant] = field(default_factory=OrderedDict)
    ledger: Ledger = field(default_factory=Ledger)
    reservoir: Reservoir | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def load(
    seat: LoadedSlot,
    order: Order,
    artifact: Artifact,
    *,
    interception: Interception | None,
    compare: Compare,
) -> tuple[Variant, int]:
    """Return an artifact's variant for a slot, and at how many shapes it was checked.

    Raises
    ------
    Refused
        If it was not made for the slot, or its result differs there from the slot's own kernel.
    """
    slot = seat.slot
    bounds = parse_bounds(order.guard, slot.spec.variable_axes)
    if not artifact.spec.same_launch(slot.spec) or artifact.spec.name != slot.spec.name:
        raise Refused("definition-mismatch", detail=f"not made for slot {slot.spec.name}")
    if isinstance(slot, KernelSlot):
        assert interception is not None, "interception made the slot"
        return interception.load(artifact, slot)
    loader = LOADERS.get(artifact.language)
    if loader is None:
        raise Refused("language-unsupported", detail=f"no loader for {artifact.language}")
    variant = loader(artifact, seat.packed)
    if not isinstance(variant, LoadedVariant):
        return variant, 0  # loaders of other languages make the check
    for weights in slot.constants():
        by_input = dict(zip(slot.spec.constant_inputs, weights, strict=True))
        for index, layout in variant.repacked:
            seat.packed.pack(by_input[index], layout)
    shapes = self_check(
        variant, slot, bounds=bounds, tolerance=order.shadow_tolerance, compare=compare
    )
    variant.prepare_shipped()
    if isinstance(slot, OperatorSlot):
        variant.into = slot.into(variant.allocate())
    return variant, shapes


def is_resident(seat: LoadedSlot, digest: str) -> bool:
    """Whether a variant is loaded; its lease, if it has one, is renewed."""
    with seat.lock:
        if digest not in seat.resident:
            return False
        seat.ledger.renew(digest)
        return True


def drop_expired(seat: LoadedSlot) -> None:
    with seat.lock:
        for digest in seat.ledger.expired():
            log.info("%s: %s was never committed", seat.slot.spec.name, digest)
            drop(seat, digest)


def make_room(seat: LoadedSlot, order: Order) -> None:
    for digest in (order.previous, order.artifact):
        if digest is not None and digest in seat.resident:
            seat.resident.move_to_end(digest)
    while len(seat.resident) > MAX_RESIDENT:
        digest, _ = seat.resident.popitem(last=False)
        seat.ledger.release(digest)
    _keep_layouts(seat)


def drop(seat: LoadedSlot, digest: str) -> bool:
    if seat.resident.pop(digest, None) is None:
        return False
    _keep_layouts(seat)
    return True


def _keep_layouts(seat: LoadedSlot) -> None:
    layouts = {
        layout
        for variant in seat.resident.values()
        if isinstance(variant, LoadedVariant)
        for _, layout in variant.repacked
    }
    seat.packed.keep_layouts(layouts)


class SlotRegistry:
    """The slots of a process, each with what is loaded for it."""

    def __init__(self, interception: Interception | None) -> None:
        self.seats: dict[str, LoadedSlot] = {}
        self.graphs = HostedGraphs(interception)
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
        return [seat.slot for seat in list(self.seats.values())]

    def adopt(self, definition: str, artifact: Artifact) -> LoadedSlot:
        """Create a slot for an intercepted kernel if the artifact is for one.

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
        if isinstance(slot, KernelSlot) and self._interception is not None:
            del self.seats[slot.spec.name]
            self.graphs.remove(slot)
            self._interception.close(slot)

    def restart(self, *, first_launch: Callable[[], None] | None) -> None:
        """Return every slot to the original with nothing loaded; see `RuntimeHost.reset`."""
        for name, seat in list(self.seats.items()):
            # first, for its new lock: a thread of the parent process may have held the old one
            seat.slot.restart(first_launch=first_launch)
            self.graphs.remove(seat.slot)
            if isinstance(seat.slot, KernelSlot):  # the kernel is the server's own again
                del self.seats[name]
                if self._interception is not None:
                    self._interception.close(seat.slot)
                continue
            self.seats[name] = LoadedSlot(seat.slot, PackedWeights(served=self._weights))
            if first_launch is not None:  # a forked child continues
                self.graphs.add(seat.slot)

    def _seat(self, slot: Slot) -> LoadedSlot:
        seat = self.seats[slot.spec.name] = LoadedSlot(slot, PackedWeights(served=self._weights))
        self.graphs.add(slot)
        return seat

    def _weights(self) -> list[Tensor]:
        """Return the weights that launches of any slot used; they are part of the model."""
        return [weight for slot in self.slots() for group in slot.constants() for weight in group]
