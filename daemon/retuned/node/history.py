"""What was seen of orders in force, from look to look."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from retuned.ports import SlotState
from retuned.stages.swap import SlotFacts, SwapOrder
from retuned.stages.watch import WatchSample

_HISTORY = 256
"""Samples kept per order for the slow-decay test; totals survive a restart in the runtime."""


@dataclass(slots=True)
class Series:
    """What was seen of one order."""

    since_s: float
    """Monotonic time since which these very processes have had the order, seconds."""
    samples: deque[WatchSample] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    """Reports, oldest first."""


@dataclass(slots=True)
class History:
    """Samples seen per order. Not durable: the runtime's totals are.

    The history starts again with a restarted server, a new worker or a restarted daemon. The time
    to engage counts from when the processes have the order, never from a wall clock.
    """

    series: dict[str, Series] = field(default_factory=dict)

    def extend(self, order: SwapOrder, sample: WatchSample, *, now_s: float) -> Series:
        """Add one sample and return all of that order."""
        known = self.series.setdefault(order.id, Series(since_s=now_s))
        if known.samples and _is_reset(known.samples[-1], sample):
            known.since_s = now_s
        known.samples.append(sample)
        return known

    def restart(self, orders: Collection[str]) -> None:
        """Start again with orders that were sent to the server, or sent again."""
        for order in orders:
            self.series.pop(order, None)

    def forget_all_but(self, orders: Collection[str]) -> None:
        """Drop orders that are not in force any more."""
        self.restart(self.series.keys() - set(orders))


def _is_reset(last: WatchSample, sample: WatchSample) -> bool:
    """Whether some process that is counted now is not one that was counted before."""
    return (
        (last.epoch, last.artifact) != (sample.epoch, sample.artifact)
        or last.members != sample.members
        or last.processes != sample.processes
        or sample.idle_processes > last.idle_processes
        or sample.swapped_launches < last.swapped_launches
        or sample.shadow_checks < last.shadow_checks
    )


def facts_of(slot: SlotState) -> SlotFacts:
    """Return what decisions read of a slot."""
    return SlotFacts(
        definition=slot.definition,
        active=slot.active,
        epoch=slot.epoch,
        newest_epoch=slot.newest_epoch,
        tripped=slot.tripped,
    )
