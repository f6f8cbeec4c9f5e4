"""Steps 1 to 3: trace files to batches, batches to windows, windows to drift reports."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retuned.errors import TemporaryError
from retuned.observing import counts as counting
from retuned.observing import shown
from retuned.observing.context import BATCH, DETECTOR, DRIFT, WINDOW, Observing
from retuned.ports import Event, Stored, TraceBatch
from retuned.stages import drift as drift_stage
from retuned.stages import profile as profile_stage
from retuned.stages.drift import DetectorState, DriftAction, DriftReport
from retuned.stages.profile import Counts, WorkloadProfile

log = logging.getLogger(__name__)

_MAX_DEVICES = 64
"""Devices of one window that are told apart."""
_MERGED_AT_ONCE = 8
"""Profiles that are in memory together: each has up to a thousand signatures in a sidecar."""


def ingest(ctx: Observing) -> int:
    """Fold every newly completed trace file into a batch; return how many there were."""
    batches = ctx.traces.poll()
    for path, message in ctx.traces.failures():
        log.warning("trace refused: %s", message)
        shown.batch_refused(ctx)
        ctx.store.record(_event(ctx, BATCH, path, what="trace-refused", message=message))
    for number, batch in enumerate(batches):
        try:
            about: dict[str, str | int | float | bool] = {
                "format": batch.format,
                "launches": len(batch.launches),
            }
            with ctx.spans.span("trace", about=about):
                _keep(ctx, batch)
        except TemporaryError:  # such as a full disk: nothing of it is lost, it comes again
            ctx.traces.give_back(batches[number:])
            raise
    return len(batches)


def close_windows(ctx: Observing) -> int:
    """Merge the batches of every window that has ended; return how many windows were closed."""
    window_ns = int(ctx.settings.window.total_seconds() * 1e9)
    deadline = ctx.clock.now() - ctx.settings.settle
    boundary = int(deadline.timestamp() * 1e9) // window_ns * window_ns
    groups: dict[int, list[_Waiting]] = defaultdict(list)
    for batch in _waiting(ctx):
        if batch.completed_at_ns < boundary:
            groups[batch.completed_at_ns // window_ns].append(batch)
    for index in sorted(groups):
        came = [batch.traceparent for batch in groups[index]]
        with ctx.spans.span("profile", links=came, about={"batches": len(came)}):
            _close(ctx, index * window_ns, window_ns, groups[index])
    return len(groups)


def judge_windows(ctx: Observing) -> Sequence[DriftReport]:
    """Learn the baseline from the first windows, then judge each new one in order."""
    fresh = ctx.store.list(WINDOW, phase="new")
    stored = ctx.store.get(DETECTOR, "state")
    if stored is None:
        _learn(ctx, fresh)
        return ()
    state = DetectorState.model_validate(stored.body)
    reports = []
    for window in fresh:
        with ctx.spans.span("drift", links=[window.traceparent], about={"window": window.id}):
            report, state = drift_stage.detect(
                WorkloadProfile.model_validate(window.body["profile"]),
                state=state,
                settings=ctx.settings.drift,
            )
            ctx.spans.say(action=str(report.action), sentence=report.sentence)
            _keep_report(ctx, window, report, state)
        reports.append(report)
    return reports


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that is in no window yet, without what it holds."""

    id: str
    completed_at_ns: int
    traceparent: str


def _waiting(ctx: Observing) -> Iterator[_Waiting]:
    """Yield them oldest first, one body in memory at a time."""
    for id in ctx.store.ids(BATCH, phase="new"):
        batch = ctx.store.get(BATCH, id)
        if batch is not None:
            yield _Waiting(id, int(batch.body["completed_at_ns"]), batch.traceparent)


def _keep(ctx: Observing, batch: TraceBatch) -> None:
    body = {
        "origin": batch.origin,
        "format": batch.format,
        "completed_at_ns": batch.completed_at_ns,
        "skipped": dict(batch.skipped),
        "devices": sorted({each.device for each in batch.launches if each.device})[:_MAX_DEVICES],
        "profile": _fold(ctx, batch).model_dump(mode="json"),
    }
    if ctx.store.add(BATCH, batch.digest, body, phase="new"):
        log.info("trace read: %s, %s launches", batch.origin, f"{len(batch.launches):,}")
        shown.batch_read(ctx, batch)


def _fold(ctx: Observing, batch: TraceBatch) -> WorkloadProfile:
    return profile_stage.fold(
        batch.launches,
        window_start_ns=batch.completed_at_ns - batch.span_ns,
        window_ns=batch.span_ns,
        observed_ns=batch.span_ns,
        settings=ctx.settings.profile,
        environment=ctx.environment,
    )


def _merged(ctx: Observing, batches: Sequence[_Waiting]) -> tuple[WorkloadProfile, Sequence[str]]:
    """Merge some at a time: a profiler may write hundreds of files in a window.

    Returns the workload, and the devices that it ran on.
    """
    merged: list[WorkloadProfile] = []
    devices: set[str] = set()
    for first in range(0, len(batches), _MERGED_AT_ONCE):
        for batch in batches[first : first + _MERGED_AT_ONCE]:
            stored = ctx.store.get(BATCH, batch.id)
            if stored is not None:
                merged.append(WorkloadProfile.model_validate(stored.body["profile"]))
                devices.update(stored.body.get("devices", ()))
        merged = [profile_stage.merge(merged, settings=ctx.settings.profile)]
    return merged[0], sorted(devices)[:_MAX_DEVICES]


def _close(ctx: Observing, start_ns: int, window_ns: int, batches: Sequence[_Waiting]) -> None:
    found, devices = _merged(ctx, batches)
    merged = found.model_copy(update={"window_start_ns": start_ns, "window_ns": window_ns})
    now = counting.totals(ctx)
    before: Counts = {}
    for previous in ctx.store.list(WINDOW, limit=1):
        if int(previous.id.partition(".")[0]) + window_ns == start_ns:  # else hours may lie between
            before = previous.body["totals"]
    counts = counting.since(before, now)
    body = {
        "profile": counting.with_counts(ctx, merged, counts).model_dump(mode="json"),
        "totals": counting.steady(before, now),
        "counts": counts,
        "devices": devices,
    }
    with ctx.store.transaction():
        # a late file may complete a window that is closed already: it opens a second part of it
        part = 0
        while not ctx.store.add(WINDOW, f"{start_ns:020d}.{part}", body, phase="new"):
            part += 1
        for batch in batches:
            ctx.store.advance(BATCH, batch.id, expect="new", to="folded")
    shown.window_closed(ctx, merged)
    log.info("window closed: %s launches, %s", f"{merged.launches:,}", _standing(ctx))


def _standing(ctx: Observing) -> str:
    """Say how far the baseline is."""
    if ctx.store.get(DETECTOR, "state") is not None:
        return "to be judged"
    fresh, needed = len(ctx.store.ids(WINDOW, phase="new")), ctx.settings.baseline_windows
    if fresh <= needed:
        return f"{fresh} of at least {needed} windows for the baseline"
    return f"window {fresh}; the baseline waits for {needed} that can be compared with each other"


def _learn(ctx: Observing, fresh: Sequence[Stored]) -> None:
    if len(fresh) < ctx.settings.baseline_windows:
        return
    profiles = [WorkloadProfile.model_validate(window.body["profile"]) for window in fresh]
    used = len(drift_stage.comparable(profiles))
    if used < ctx.settings.baseline_windows:
        return
    state = drift_stage.learn(profiles, settings=ctx.settings.drift)
    with ctx.store.transaction():
        ctx.store.add(DETECTOR, "state", state.model_dump(mode="json"), phase="current")
        for window in fresh:
            ctx.store.advance(WINDOW, window.id, expect="new", to="baseline")
        ctx.store.record(_event(ctx, DETECTOR, "state", what="baseline-learned", windows=used))
    left_out = f", {len(fresh) - used} that say too little left out" if len(fresh) > used else ""
    log.info("baseline learned from %d windows%s", used, left_out)


def _keep_report(ctx: Observing, window: Stored, report: DriftReport, state: DetectorState) -> None:
    retune = report.action is DriftAction.RETUNE
    with ctx.store.transaction():
        ctx.store.add(
            DRIFT,
            window.id,
            report.model_dump(mode="json"),
            phase="new" if retune else "noted",
        )
        ctx.store.advance(
            DETECTOR,
            "state",
            expect="current",
            to="current",
            body=state.model_dump(mode="json"),
        )
        phase = "skipped" if report.skipped == "not-counted" else "judged"
        ctx.store.advance(WINDOW, window.id, expect="new", to=phase)
        if report.detected:
            ctx.store.record(
                _event(
                    ctx,
                    DRIFT,
                    window.id,
                    what=f"drift-{report.action}",
                    sentence=report.sentence,
                )
            )
    shown.window_judged(ctx, report)
    log.info("window judged: action=%s %s", report.action, report.sentence)


def _event(ctx: Observing, kind: str, id: str, *, what: str, **detail: object) -> Event:
    return Event(at=ctx.clock.now(), kind=kind, id=id, what=what, who="retuned", detail=detail)
