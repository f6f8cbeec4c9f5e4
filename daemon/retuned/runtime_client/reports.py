"""Reports of a server's processes, parsed as untrusted data and added up.

They also give how far an order has spread over the processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from retuned.errors import TemporaryError
from retuned.ports import SlotState
from retuned.runtime_client.connection import RETRY_S
from retuned.stages.watch import BucketSample, WatchSample


def spread_of(samples: Sequence[WatchSample]) -> dict[str, Any]:
    """Return the fields of a `WatchSample` for the spread of an order.

    Parameters
    ----------
    samples
        Of the processes that have the order; at least one.
    """
    fraction = min(sample.fraction for sample in samples)
    behind = [sample for sample in samples if sample.fraction == fraction]
    return {
        "fraction": fraction,
        "fraction_s": min(sample.fraction_s for sample in behind),
        "buckets": _added(samples),
        "excluded": tuple(sorted({name for sample in samples for name in sample.excluded})),
        "orphaned": any(sample.orphaned for sample in samples),
        "shadow_s": sum(sample.shadow_s for sample in samples),
        "throttled_checks": sum(sample.throttled_checks for sample in samples),
        "slowdown": max(sample.slowdown for sample in samples),
    }


def _added(samples: Sequence[WatchSample]) -> tuple[BucketSample, ...]:
    found: dict[tuple[int, ...], BucketSample] = {}
    for each in (row for sample in samples for row in sample.buckets):
        known = found.get(each.bucket)
        if known is None:
            found[each.bucket] = each
            continue
        found[each.bucket] = BucketSample(
            bucket=each.bucket,
            launches=known.launches + each.launches,
            checks=known.checks + each.checks,
            step_checks=known.step_checks + each.step_checks,
        )
    return tuple(sorted(found.values(), key=lambda row: -row.launches))


T = TypeVar("T")


def entries(name: str, parse: Callable[[Any], T]) -> Callable[[Mapping[str, Any]], list[T]]:
    """Return a parser of the entries of an answer; an invalid answer is a temporary error."""

    def read(answer: Mapping[str, Any]) -> list[T]:
        try:
            return [parse(entry) for entry in answer[name]]
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            message = f"the runtime's {name} cannot be read: {error}"
            raise TemporaryError(message[:500], delay_s=RETRY_S) from error

    return read


def sample_of(entry: Mapping[str, Any]) -> WatchSample:
    """Parse a report; unknown counts of a newer runtime are ignored."""
    known = {name: entry[name] for name in WatchSample.model_fields if name in entry}
    return WatchSample.model_validate(known)


def slot_state(entry: Mapping[str, Any]) -> SlotState:
    """Parse the state of one slot in one process."""
    return SlotState(
        definition=str(entry["definition"]),
        active=None if entry["active"] is None else str(entry["active"]),
        epoch=int(entry["epoch"]),
        launches={tuple(int(n) for n in key): int(count) for key, count in entry["launches"]},
        other_launches=int(entry["other_launches"]),
        tripped=str(entry["tripped"]),
        bypassed=bool(entry["bypassed"]),
        uncounted_s=float(entry.get("uncounted_s", 0.0)),
    )


def merge_states(states: Sequence[SlotState]) -> SlotState:
    """Add up the states of one slot; the process furthest behind gives the active order."""
    behind = min(states, key=lambda state: state.epoch)
    launches: dict[tuple[int, ...], int] = defaultdict(int)
    for state in states:
        for key, count in state.launches.items():
            launches[key] += count
    return SlotState(
        definition=behind.definition,
        active=behind.active,
        epoch=behind.epoch,
        newest_epoch=max(state.epoch for state in states),
        launches=dict(launches),
        other_launches=sum(state.other_launches for state in states),
        tripped=next((state.tripped for state in states if state.tripped), ""),
        bypassed=any(state.bypassed for state in states),
        awaits_graphs=any(state.awaits_graphs for state in states),
        counted=any(state.counted for state in states),
        uncounted_s=sum(state.uncounted_s for state in states),
    )


def merge_samples(by_process: Mapping[str, WatchSample]) -> WatchSample:
    """Add up the processes with the newest order: a waiting one must not hide harm in another."""
    newest = max(by_process.values(), key=lambda sample: (sample.epoch, not sample.tripped))
    samples = [sample for sample in by_process.values() if sample.epoch == newest.epoch]
    waiting = len(by_process) - len(samples)
    idle = [sample for sample in samples if sample.swapped_launches == 0]
    engaged = {
        name
        for name, each in by_process.items()
        if each.epoch == newest.epoch and each.swapped_launches
    }
    ineligible: dict[str, int] = defaultdict(int)
    for sample in samples:
        for reason, count in sample.ineligible_launches.items():
            ineligible[reason] += count
    checks = sum(sample.shadow_checks for sample in samples)
    return WatchSample(
        definition=newest.definition,
        artifact=newest.artifact,
        epoch=newest.epoch,
        swapped_launches=sum(sample.swapped_launches for sample in samples),
        fallback_launches=sum(sample.fallback_launches for sample in samples),
        ineligible_launches=dict(ineligible),
        shadow_checks=checks,
        shadow_mismatches=sum(sample.shadow_mismatches for sample in samples),
        shadow_nonfinite=sum(sample.shadow_nonfinite for sample in samples),
        worst_ratio=max(sample.worst_ratio for sample in samples),
        last_mean_ratio=max(sample.last_mean_ratio for sample in samples),
        **spread_of(samples),
        errors=sum(sample.errors for sample in samples),
        unfollowed_graphs=sum(sample.unfollowed_graphs for sample in samples),
        tripped=next((sample.tripped for sample in samples if sample.tripped), ""),
        processes=len(by_process),
        idle_processes=waiting + len(idle),
        quiet_processes=sum(sample.fallback_launches == 0 for sample in idle),
        members=tuple(sorted(by_process)),
        idle_members=tuple(sorted(by_process.keys() - engaged)),
    )
