"""One slot with what is loaded for it: loading a variant, keeping it, and letting it go."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from retuned.runtime.artifact import Artifact
from retuned.runtime.captures import Reservoir
from retuned.runtime.epochs import Ledger
from retuned.runtime.inforce import Variant
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.loaded import LoadedVariant
from retuned.runtime.orders import Order
from retuned.runtime.overrides_frames import OperatorSlot
from retuned.runtime.selfcheck import self_check
from retuned.runtime.shadow import Compare
from retuned.runtime.slots import Slot
from retuned.runtime.spec import Refused, parse_bounds
from retuned.runtime.variant import LOADERS
from retuned.runtime.weights import PackedWeights

log = logging.getLogger(__name__)

MAX_RESIDENT = 4
"""Variants kept loaded per slot for instant ways back."""
COUNTED = (LoadedVariant, KernelVariant)
"""Variants that say where their code came from."""


@dataclass(slots=True)
class LoadedSlot:
    """One slot with what was loaded for it."""

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
        If it was not made for the slot, or does not do there what the slot's own kernel does.
    """
    slot = seat.slot
    bounds = parse_bounds(order.guard, slot.spec.variable_axes)
    if not artifact.spec.same_launch(slot.spec) or artifact.spec.name != slot.spec.name:
        raise Refused("definition-mismatch", detail=f"not made for slot {slot.spec.name}")
    if isinstance(slot, KernelSlot):
        assert interception is not None, "it has made the slot"
        return interception.load(artifact, slot)
    loader = LOADERS.get(artifact.language)
    if loader is None:
        raise Refused("language-unsupported", detail=f"no loader for {artifact.language}")
    variant = loader(artifact, seat.packed)
    if not isinstance(variant, LoadedVariant):
        return variant, 0  # loaders of other languages check by themselves
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
    """Whether a variant is loaded; its lease, if it has one, begins anew."""
    with seat.lock:
        if digest not in seat.resident:
            return False
        seat.ledger.renew(digest)
        return True


def drop_expired(seat: LoadedSlot) -> None:
    """Unload what was prepared and never committed."""
    with seat.lock:
        for digest in seat.ledger.expired():
            log.info("%s: %s was never committed", seat.slot.spec.name, digest)
            drop(seat, digest)


def make_room(seat: LoadedSlot, order: Order) -> None:
    """Unload variants that no way back leads to."""
    for digest in (order.previous, order.artifact):
        if digest is not None and digest in seat.resident:
            seat.resident.move_to_end(digest)
    while len(seat.resident) > MAX_RESIDENT:
        digest, _ = seat.resident.popitem(last=False)
        seat.ledger.release(digest)
    _keep_layouts(seat)


def drop(seat: LoadedSlot, digest: str) -> bool:
    """Forget one variant that is not in force; False if it is gone already."""
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
