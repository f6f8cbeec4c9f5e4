"""Reports of slots and of the process, as JSON data for the control socket.

Reading the status changes nothing; no lease is renewed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.supervisor import Supervision
from retuned.runtime.schema import Key
from retuned.runtime.shadow.pending_checks import CHECKS

MAX_REPORTED_KEYS = 2048
"""Keys per slot in one answer, the most frequent first; the rest is in ``other``."""

MAX_REPORTED_BUCKETS = 256


def _tripped(slot: Slot) -> str:
    state = slot.table.state
    return state.removeprefix("tripped:") if state.startswith("tripped:") else ""


def slot_state(slot: Slot) -> dict[str, Any]:
    """Return the data of the daemon's `SlotState`."""
    table = slot.table
    order = table.in_force
    tripped = _tripped(slot)
    counts: list[tuple[Key, int]] = sorted(slot.launches().items(), key=lambda item: -item[1])
    shown = counts[:MAX_REPORTED_KEYS]
    return {
        "definition": slot.spec.name,
        "active": None if order is None or tripped else order.artifact,
        "epoch": 0 if order is None else order.epoch,
        # tuples: the garbage collector drops those of numbers, and a full collection, which its
        # survivors bring nearer, stops the server for a quarter of a second
        "launches": [(key, count) for key, count in shown],
        "other_launches": slot.other[0] + sum(count for _, count in counts[len(shown) :]),
        "tripped": tripped,
        "bypassed": table.state == "bypassed",
    }


def slot_sample(slot: Slot) -> dict[str, Any]:
    """Return the data of the daemon's `WatchSample`: totals since the last order."""
    order = slot.table.in_force
    tripped = _tripped(slot)
    sample: dict[str, Any] = {
        "definition": slot.spec.name,
        "artifact": None if order is None or tripped else order.artifact,
        "epoch": 0 if order is None else order.epoch,
        "tripped": tripped,
    }
    if not isinstance(order, Swapped):
        counts = {"swapped_launches": 0, "fallback_launches": slot.total()}
        return sample | counts | dict.fromkeys(_STATS, 0) | {"ineligible_launches": {}}
    stats, ran = order.stats, order.swapped_launches
    with stats.lock:
        return (
            sample
            | {
                "swapped_launches": ran,
                "fallback_launches": max(0, slot.total() - order.launches_before - ran),
                "ineligible_launches": dict(stats.ineligible),
                "shadow_checks": stats.checks,
                "shadow_mismatches": stats.mismatches,
                "shadow_nonfinite": stats.nonfinite,
                "worst_ratio": stats.worst_ratio,
                "last_mean_ratio": stats.mean_ratio,
                "errors": stats.errors,
            }
            | _rollout(order)
        )


def _rollout(order: Swapped) -> dict[str, Any]:
    live, judge, stats = order.live, order.judge, order.stats
    return {
        "fraction": live.fraction,
        "fraction_s": live.seconds,
        "orphaned": order.orphaned,
        "buckets": _buckets(order),
        "excluded": sorted(live.excluded),
        "shadow_s": judge.cost.spent_s,
        "shadow_mismatched_elements": stats.mismatched,
        "dropped_checks": dict(stats.dropped),
        "throttled_checks": judge.cost.throttled,
        "slowdown": judge.slowdown,
    }


def _buckets(order: Swapped) -> list[dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for name, stratum in order.strata():
        empty = {"bucket": list(name), "launches": 0, "checks": 0, "step_checks": 0}
        row = found.setdefault(name, empty)
        row["launches"] += stratum.ran + stratum.held
        row["checks"] += stratum.checks
        row["step_checks"] += stratum.step_checks
    rows = sorted(found.values(), key=lambda row: -int(row["launches"]))
    return rows[:MAX_REPORTED_BUCKETS]


_STATS = (
    "shadow_checks",
    "shadow_mismatches",
    "shadow_nonfinite",
    "worst_ratio",
    "last_mean_ratio",
    "errors",
)

MAX_SLOTS = 1024
_LEFT_OUT = ("buckets", "excluded")

Counted = Callable[[Slot, Mapping[str, Any]], Mapping[str, Any]]


def process_status(
    slots: Sequence[Slot], supervision: Supervision, *, counted: Counted
) -> dict[str, Any]:
    """Return the state of a process and of its slots, as JSON data for the control socket.

    Parameters
    ----------
    counted
        Adds the launches made by graph replays.
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
    sample = dict(counted(slot, slot_sample(slot)))
    lists = {f"{name}_count": len(sample.pop(name, ())) for name in _LEFT_OUT}
    state = {
        "state": slot.table.state,
        "launches": slot.total(),
        "breaker": dict(breaker),
        "order": None,
        "guard": {},
    }
    if isinstance(order, Swapped):
        state |= _order(slot, order)
    return sample | lists | state


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
