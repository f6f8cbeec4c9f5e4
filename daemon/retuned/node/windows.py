"""Steps 1 to 3: trace files to batches, batches to windows, windows to drift reports.

What the server's slots counted: every launch, by slot and bucket of its lengths.

From what a person sets to how windows are made and judged.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Protocol

from retuned.errors import TemporaryError
from retuned.node import metrics
from retuned.node.context import BATCH, DETECTOR, DRIFT, WINDOW, Observing
from retuned.ports import Event, Stored, TraceBatch
from retuned.stages import drift as drift_stage
from retuned.stages import profile as profile_stage
from retuned.stages.drift import (
    DEMO_SETTINGS,
    DetectorState,
    DriftAction,
    DriftReport,
    DriftSettings,
)
from retuned.stages.profile import Counts, ProfileSettings, WorkloadProfile, bucket, key_of, recount

log = logging.getLogger(__name__)


def totals(ctx: Observing) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
    """Return launches since the server started, and for how long they were not counted, seconds.

    Both are empty while the server does not answer.
    """
    try:
        slots = [slot for slot in ctx.swapper.slots() if slot.counted]
    except TemporaryError as error:
        log.info("no counters: %s", error)
        return {}, {}
    counts = {slot.definition: _bucketed(ctx, slot.launches) for slot in slots}
    return counts, {slot.definition: slot.uncounted_s for slot in slots if slot.uncounted_s}


def whole(counts: Counts, before: Mapping[str, float], now: Mapping[str, float]) -> Counts:
    """Return the counts of a window without those of slots that did not count all of it.

    Examples
    --------
    >>> whole({"gemm": {"4": 5}, "norm": {"4": 5}}, {"norm": 1.0}, {"norm": 1.0, "gemm": 30.5})
    {'norm': {'4': 5}}
    """
    return {slot: each for slot, each in counts.items() if before.get(slot) == now.get(slot)}


def since(before: Counts, now: Counts) -> dict[str, dict[str, int]]:
    """Return the counts in between; after a restart, from zero, the difference is unknown.

    Examples
    --------
    >>> since({"gemm": {"4": 10}}, {"gemm": {"4": 15, "64": 2}, "new": {"1": 9}})
    {'gemm': {'4': 5, '64': 2}}
    >>> since({"gemm": {"4": 10}}, {"gemm": {"4": 3}})
    {}
    """
    return {
        slot: {
            key: count - before[slot].get(key, 0)
            for key, count in counts.items()
            if count > before[slot].get(key, 0)
        }
        for slot, counts in now.items()
        if slot in before and not _fell(before[slot], counts)
    }


def steady(before: Counts, now: Counts) -> dict[str, Mapping[str, int]]:
    """Return the totals that the next window may be compared with.

    Counts that fell are those of a process that went, or did not answer: when it answers again, the
    difference would be all that it ever launched.

    Examples
    --------
    >>> steady({"gemm": {"4": 10}}, {"gemm": {"4": 3}, "new": {"1": 9}})
    {'new': {'1': 9}}
    """
    return {slot: counts for slot, counts in now.items() if not _fell(before.get(slot, {}), counts)}


def _fell(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(now.get(key, 0) < count for key, count in before.items())


def with_counts(ctx: Observing, profile: WorkloadProfile, counts: Counts) -> WorkloadProfile:
    """Return a window with its sampled launches replaced by counted ones, as far as known."""
    counted = {}
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] in counts:
            counted[signature] = counts[named[0]].get(key_of(named[1].values()), 0)
    return recount(profile, counted)


def _bucketed(ctx: Observing, launches: Mapping[tuple[int, ...], int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key, count in launches.items():
        counts[key_of(bucket(length, ctx.settings.profile) for length in key)] += count
    return dict(counts)


_MAX_DEVICES = 64
"""Most devices of one window with separate data."""
_MERGED_AT_ONCE = 8
"""Profiles that are in memory together: each has up to a thousand signatures in a sidecar."""


def ingest(ctx: Observing) -> int:
    """Fold every newly completed trace file into a batch; return how many there were."""
    batches = ctx.traces.poll()
    for path, message in ctx.traces.failures():
        log.warning("trace refused: %s", message)
        metrics.batch_refused(ctx)
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


HELD = "held"
"""Phase of an alarm that waits until the swaps were tried off."""
Holds = Callable[[Stored, DriftReport], str]
"""From a window and its alarm to the alarm's text while it waits; empty sends it."""


def judge_windows(
    ctx: Observing, *, holds: Holds = lambda _window, _alarm: ""
) -> Sequence[DriftReport]:
    """Learn the baseline from the first windows, then judge each new one in order.

    Parameters
    ----------
    ctx
        Ports and settings.
    holds
        Decides in the transaction of an alarm whether it waits for its cause. `send_alarm` sends it
        then.
    """
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
            _keep_report(ctx, window, report, state, holds=holds)
        reports.append(report)
    return reports


def send_alarm(ctx: Observing, id: str, finding: str) -> None:
    """Send an alarm that waited, with what was found; one that was sent gets the finding later.

    Parameters
    ----------
    ctx
        Ports and settings.
    id
        Of its report.
    finding
        What was found of its cause, as a part of its sentence.
    """
    stored = ctx.store.get(DRIFT, id)
    if stored is None:
        return
    report = drift_stage.attributed(DriftReport.model_validate(stored.body), finding)
    body = report.model_dump(mode="json")
    with ctx.store.transaction():
        first = ctx.store.advance(DRIFT, id, expect=HELD, to="noted", body=body)
        if not first and not ctx.store.advance(DRIFT, id, expect="noted", to="noted", body=body):
            return
        what = f"drift-{report.action}" if first else "drift-attributed"
        ctx.store.record(_event(ctx, DRIFT, id, what=what, sentence=report.sentence))
    if first and not ctx.store.ids(DRIFT, above=id):
        metrics.drift_standing(ctx, report.action)
    log.info("%s: %s", what, report.sentence)


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
        metrics.batch_read(ctx, batch)


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
    now, uncounted_s = totals(ctx)
    before: Counts = {}
    uncounted_before_s: Mapping[str, float] = {}
    for previous in ctx.store.list(WINDOW, limit=1):
        if int(previous.id.partition(".")[0]) + window_ns == start_ns:  # else hours may lie between
            before = previous.body["totals"]
            uncounted_before_s = previous.body.get("uncounted_s", {})
    counts = whole(since(before, now), uncounted_before_s, uncounted_s)
    body = {
        "profile": with_counts(ctx, merged, counts).model_dump(mode="json"),
        "totals": steady(before, now),
        "counts": counts,
        "uncounted_s": uncounted_s,
        "devices": devices,
    }
    with ctx.store.transaction():
        # a late file may complete a window that is closed already: it opens a second part of it
        part = 0
        while not ctx.store.add(WINDOW, f"{start_ns:020d}.{part}", body, phase="new"):
            part += 1
        for batch in batches:
            ctx.store.advance(BATCH, batch.id, expect="new", to="folded")
    metrics.window_closed(ctx, merged)
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
    left_out = f", {len(fresh) - used} empty or sampled ones left out" if len(fresh) > used else ""
    log.info("baseline learned from %d windows%s", used, left_out)


def _keep_report(
    ctx: Observing, window: Stored, report: DriftReport, state: DetectorState, *, holds: Holds
) -> None:
    phase = "new" if report.action is DriftAction.RETUNE else "noted"
    with ctx.store.transaction():
        finding = holds(window, report) if report.action is DriftAction.ALARM else ""
        if finding:
            report, phase = drift_stage.attributed(report, finding), HELD
        ctx.store.add(DRIFT, window.id, report.model_dump(mode="json"), phase=phase)
        ctx.store.advance(
            DETECTOR,
            "state",
            expect="current",
            to="current",
            body=state.model_dump(mode="json"),
        )
        judged = "skipped" if report.skipped == "not-counted" else "judged"
        ctx.store.advance(WINDOW, window.id, expect="new", to=judged)
        if report.detected and not finding:
            ctx.store.record(
                _event(
                    ctx,
                    DRIFT,
                    window.id,
                    what=f"drift-{report.action}",
                    sentence=report.sentence,
                )
            )
    metrics.window_judged(ctx, report, shown=DriftAction.NONE if finding else report.action)
    log.info("window judged: action=%s %s", report.action, report.sentence)


def _event(ctx: Observing, kind: str, id: str, *, what: str, **detail: object) -> Event:
    return Event(at=ctx.clock.now(), kind=kind, id=id, what=what, who="retuned", detail=detail)


_DEMO_PROFILE = ProfileSettings(ladder=(1, 2, 4, 8, 16, 32, 64, 128, 256))
"""Windows of seconds hold few launches: with wider buckets each is seen often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How windows are made and judged; see `ObservingSettings`."""

    window: timedelta
    """Length of a window."""
    settle: timedelta
    """How long after a window's end its files may still land."""
    baseline_windows: int
    """Windows that make the baseline."""
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    """How launches are folded."""
    drift: DriftSettings = field(default_factory=DriftSettings)
    """The detector."""


class WindowFields(Protocol):
    """The settings of a program that say how it makes windows."""

    @property
    def window_s(self) -> float:
        """Length of a window."""
        ...

    @property
    def settle_s(self) -> float:
        """How long after a window's end its files may still arrive."""
        ...

    @property
    def observe_poll_s(self) -> float:
        """Time between two polls of the trace folders."""
        ...

    @property
    def baseline_windows(self) -> int:
        """Windows that make the baseline."""
        ...

    @property
    def detector_preset(self) -> Literal["production", "demo"]:
        """Thresholds of the detector: for production traffic, or for a demo of minutes."""
        ...


def numbers_of(settings: WindowFields, *, stands_still_s: float) -> WindowSettings:
    """Return the numbers that settings mean.

    Parameters
    ----------
    settings
        What a person set.
    stands_still_s
        How long a file must have stood still before it is read: its window must not close before
        that, and the two looks that it takes.
    """
    demo = settings.detector_preset == "demo"
    taken_after_s = stands_still_s + 2.0 * settings.observe_poll_s
    return WindowSettings(
        window=timedelta(seconds=settings.window_s),
        settle=timedelta(seconds=max(settings.settle_s, taken_after_s)),
        baseline_windows=settings.baseline_windows,
        profile=_DEMO_PROFILE if demo else ProfileSettings(),
        drift=DEMO_SETTINGS if demo else DriftSettings(),
    )
