"""What a slot says about itself, as JSON data for the control socket."""

from __future__ import annotations

from typing import Any

from retuned.runtime.inforce import Swapped
from retuned.runtime.slots import Slot
from retuned.runtime.spec import Key

MAX_REPORTED_KEYS = 2048
"""Keys per slot in one answer, the most frequent first; the rest is in ``other``."""

MAX_REPORTED_BUCKETS = 256
"""Shape buckets per slot in one answer."""


def _tripped(slot: Slot) -> str:
    state = slot.table.state
    return state.removeprefix("tripped:") if state.startswith("tripped:") else ""


def slot_state(slot: Slot) -> dict[str, Any]:
    """Return what the daemon's `SlotState` is read from."""
    table = slot.table
    order = table.in_force
    tripped = _tripped(slot)
    counts: list[tuple[Key, int]] = sorted(slot.launches().items(), key=lambda item: -item[1])
    shown = counts[:MAX_REPORTED_KEYS]
    return {
        "definition": slot.spec.name,
        "active": None if order is None or tripped else order.artifact,
        "epoch": 0 if order is None else order.epoch,
        "launches": [[list(key), count] for key, count in shown],
        "other_launches": slot.other[0] + sum(count for _, count in counts[len(shown) :]),
        "tripped": tripped,
        "bypassed": table.state == "bypassed",
    }


def slot_sample(slot: Slot) -> dict[str, Any]:
    """Return what the daemon's `WatchSample` is read from: totals since the last order."""
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
    """Return how far the order has spread, and what checks cost."""
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
    """Return the shape buckets, those launched most first; the shadow's counts are added."""
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
