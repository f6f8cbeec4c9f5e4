"""What a process says to people who ask how it stands. Asking changes nothing, no lease either."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.inforce import Swapped
from retuned.runtime.reports import slot_sample
from retuned.runtime.slots import Slot
from retuned.runtime.supervising import Supervision
from retuned.runtime.underway import CHECKS

MAX_SLOTS = 1024
"""Slots in one answer; the rest is counted."""
_LEFT_OUT = ("buckets", "excluded")
"""What is counted instead of listed."""

Counted = Callable[[Slot, Mapping[str, Any]], Mapping[str, Any]]


def process_status(
    slots: Sequence[Slot], supervision: Supervision, *, counted: Counted
) -> dict[str, Any]:
    """Return the state of a process and of its slots, as JSON data for the control socket.

    Parameters
    ----------
    slots
        Those of the process.
    supervision
        What it holds over all of them.
    counted
        Adds the launches that replays of graphs have made.
    """
    breaker = supervision.breaker
    opened = breaker.state()
    return {
        "pid": os.getpid(),
        "unasked_s": supervision.unasked_s,
        "breaker": {"process": breaker.process, "slots": opened},
        "checks": dict(CHECKS.state()),
        "slots": [
            _slot(slot, counted, breaker=opened.get(slot.spec.name, {}))
            for slot in slots[:MAX_SLOTS]
        ],
        "slots_left_out": max(0, len(slots) - MAX_SLOTS),
    }


def _slot(slot: Slot, counted: Counted, *, breaker: Mapping[str, str]) -> dict[str, Any]:
    order = slot.table.in_force
    told = dict(counted(slot, slot_sample(slot)))
    lists = {f"{name}_count": len(told.pop(name, ())) for name in _LEFT_OUT}
    state = {
        "state": slot.table.state,
        "launches": slot.total(),
        "breaker": dict(breaker),
        "order": None,
        "guard": {},
    }
    if isinstance(order, Swapped):
        state |= _order(slot, order)
    return told | lists | state


def _order(slot: Slot, swapped: Swapped) -> dict[str, Any]:
    order = swapped.order
    axes = slot.spec.variable_axes
    return {
        "order": {
            "id": order.id,
            "kind": order.kind,
            "target": order.target,
            "artifact": order.artifact,
            "lease_s": order.lease_s,
            "orphan": order.orphan,
        },
        "guard": {axes[axis]: [low, high] for axis, low, high in swapped.bounds},
    }
