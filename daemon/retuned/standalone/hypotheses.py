"""Stage 4 on one machine: from a drift report to hypotheses, and when the report is answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from retuned.contract import Digest, Workload, digest_of
from retuned.control.hypotheses import KnownKernels, shape_costs
from retuned.control.outcome import lower_bound
from retuned.ports import Event, Stored
from retuned.stages import drift as drift_stage
from retuned.stages import hypothesis as hypothesis_stage
from retuned.stages.drift import DetectorState, DriftReport
from retuned.stages.hypothesis import Hypothesis, ShapeCost
from retuned.stages.profile import (
    Counts,
    WorkloadProfile,
    bucket_middle,
    merge,
    together,
)
from retuned.standalone import kernels as lifting
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import winners
from retuned.standalone.records import UNDECIDED, in_force, live_guard

log = logging.getLogger(__name__)

BUDGET = "daily-budget"
"""Id of the event that says that no experiment begins for a while."""
_UNTESTED = ("open", "outdated", "abandoned")
"""Phases of hypotheses that may be made again."""


def explain(ctx: Context) -> None:
    """Turn each drift report that is worth it into hypotheses; an equal one is added once."""
    for stored in ctx.store.list(RecordKind.DRIFT, phase="new"):
        with ctx.spans.span("hypothesis", after=stored.traceparent, about={"drift": stored.id}):
            if not _explain(ctx, stored):
                return  # the window that raised it is half old traffic, half new


def _explain(ctx: Context, stored: Stored) -> bool:
    """Make hypotheses from one report; False while too little of the new traffic was observed."""
    since = ctx.store.list(RecordKind.WINDOW, phase="judged", above=stored.id)
    if len(since) < ctx.settings.explain_windows:
        return False
    profile = merge([WorkloadProfile.model_validate(w.body["profile"]) for w in since])
    counts = together(w.body["counts"] for w in since)
    shapes, total_ns = costs_of(ctx, profile, counts=counts)
    hypotheses = hypothesis_stage.hypothesize(
        shapes,
        report=DriftReport.model_validate(stored.body),
        total_gpu_time_ns=total_ns,
        observed_ns=profile.observed_ns,
        known=_answered(ctx),
        priors=gains(ctx, shapes),
        start={name: first_structures(ctx, name) for name in shapes},
        worlds={name: digest_of([live_baseline(ctx, name), ctx.environment]) for name in shapes},
        settings=ctx.settings.hypothesis,
    )
    with ctx.store.transaction():
        for hypothesis in _news(ctx, hypotheses):
            open_belief(ctx, hypothesis)
        ctx.store.advance(RecordKind.DRIFT, stored.id, expect="new", to="explained")
    return True


def settle(ctx: Context) -> None:
    """Adopt the mix as tuned once every hypothesis on its drift was tested and acted on.

    It adopts windows after the last swap: a faster kernel raises the shares of all others, and with
    older windows as baseline the swap itself would look like drift. While hypotheses wait for the
    next day's budget, it adopts the mix too, and the drift stays open.
    """
    explained = ctx.store.list(RecordKind.DRIFT, phase="explained")
    stored = ctx.store.get(RecordKind.DETECTOR, "state")
    busy = _busy(ctx)
    if not explained or stored is None or (busy and not _waits_for_budget(ctx)):
        return
    acted = [s.updated_at for s in ctx.store.list(RecordKind.ORDER, phase="done")]
    since = max([explained[-1].updated_at, *acted])
    windows = ctx.store.list(RecordKind.WINDOW, phase="judged", above=explained[-1].id)
    after = [window for window in windows if window.created_at > since]
    # the first of them began before the swap
    if len(after) <= ctx.settings.baseline_windows:
        return
    state = DetectorState.model_validate(stored.body)
    for window in after[1:]:
        profile = WorkloadProfile.model_validate(window.body["profile"])
        state = drift_stage.adopt(state, profile, tuned=True, settings=ctx.settings.drift)
    with ctx.store.transaction():
        ctx.store.advance(
            RecordKind.DETECTOR,
            "state",
            expect="current",
            to="current",
            body=state.model_dump(mode="json"),
        )
        for report in explained:  # of one that waits only the date changes
            to = "explained" if busy else "answered"
            ctx.store.advance(RecordKind.DRIFT, report.id, expect="explained", to=to)
        if not busy:
            _tell_adopted(ctx, explained, windows=len(after) - 1, swaps=len(acted))


def _tell_adopted(ctx: Context, explained: Sequence[Stored], *, windows: int, swaps: int) -> None:
    """Record that the drift is over because tuning answered it, and did not end by itself."""
    sentence = (
        "Every hypothesis on the drift was tested and decided: "
        f"the last {windows} windows are the new baseline."
    )
    log.info("drift answered: %s", sentence)
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.DRIFT,
            id=explained[-1].id,
            what="traffic-adopted",
            who="retuned",
            detail={"sentence": sentence, "swaps_so_far": swaps},
        )
    )


def costs_of(
    ctx: Context, profile: WorkloadProfile, *, counts: Counts
) -> tuple[Mapping[str, Sequence[ShapeCost]], int]:
    """Return what a window spends on each definition; see `shape_costs`."""
    live = lifting.geometries(ctx)
    kernels = KnownKernels(
        recognise=lambda s: ctx.catalog.recognise(s.kernel, s.dims, s.dtypes),
        live_shares=lambda stat: [(each.workload, each.part) for each in live.shares_of(stat)],
        serves=lambda workload: _serves(ctx, workload),
        floor_ns=lambda workload: _floor_ns(ctx, workload),
    )
    return shape_costs(
        profile, counts=counts, kernels=kernels, launch_ns=ctx.settings.hypothesis.launch_ns
    )


def _floor_ns(ctx: Context, workload: Workload) -> int:
    """Return the roofline in the middle of a bucket: at its edge it would promise too little."""
    axes = {name: bucket_middle(n, ctx.settings.profile) for name, n in workload.axes.items()}
    return ctx.catalog.floor_ns(workload.definition, axes)


def _serves(ctx: Context, workload: Workload) -> bool:
    """Whether the live baseline serves this shape: a slot holds one variant beside the original."""
    guard = live_guard(ctx.store, workload.definition)
    return guard is None or guard.allows(workload.axes)


def live_baseline(ctx: Context, definition: str) -> Digest:
    """Digest of what runs in production: the last variant swapped in, else the server's own."""
    return in_force(ctx.store, definition) or ctx.catalog.incumbent(definition).digest


def belief_of(ctx: Context, hypothesis: str) -> Hypothesis | None:
    """Return a hypothesis by its id; None if it is not in the store."""
    stored = ctx.store.get(RecordKind.HYPOTHESIS, hypothesis)
    return Hypothesis.model_validate(stored.body) if stored is not None else None


def _answered(ctx: Context) -> set[str]:
    """Return hypotheses that were tested, or are being tested; others may be made again."""
    again = [id for phase in _UNTESTED for id in ctx.store.ids(RecordKind.HYPOTHESIS, phase=phase)]
    return set(ctx.store.ids(RecordKind.HYPOTHESIS)).difference(again)


def _news(ctx: Context, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Leave out kernels under experiment; replace open hypotheses that were not tested yet."""
    tested = {s.body["definition"] for s in ctx.store.list(RecordKind.HYPOTHESIS, phase="testing")}
    news = [h for h in hypotheses if h.definition not in tested]
    kernels = {h.definition for h in news}
    for stored in ctx.store.list(RecordKind.HYPOTHESIS, phase="open"):
        if stored.body["definition"] in kernels and not stored.body["attempts"]:
            ctx.store.advance(RecordKind.HYPOTHESIS, stored.id, expect="open", to="outdated")
    refined = {s.body["definition"] for s in ctx.store.list(RecordKind.HYPOTHESIS, phase="open")}
    return [h for h in news if h.definition not in refined]


def _busy(ctx: Context) -> bool:
    """Whether a hypothesis still waits for its result."""
    unfinished = (
        (RecordKind.HYPOTHESIS, ("open", "testing")),
        (RecordKind.EXPERIMENT, ("running", "won")),
        (RecordKind.PROPOSAL, UNDECIDED),
    )
    return any(ctx.store.ids(kind, phase=phase) for kind, phases in unfinished for phase in phases)


def _waits_for_budget(ctx: Context) -> bool:
    """Whether all that is missing are experiments, and none may begin today."""
    unfinished = (
        (RecordKind.HYPOTHESIS, ("testing",)),
        (RecordKind.EXPERIMENT, ("running", "won")),
        (RecordKind.PROPOSAL, UNDECIDED),
    )
    if any(ctx.store.ids(kind, phase=phase) for kind, phases in unfinished for phase in phases):
        return False
    said = ctx.store.events(id=BUDGET, limit=1)
    return bool(said) and ctx.clock.now() - said[-1].at < timedelta(days=1)


def first_structures(ctx: Context, definition: str) -> tuple[str, ...]:
    """Say where to begin: where the family was won, else with the source that runs.

    What was tried on the way to a variant in force is not tried again; empty means everywhere.
    """
    if in_force(ctx.store, definition) is not None:
        tried = _tried(ctx, definition)
        return tuple(name for name in ctx.catalog.structures(definition) if name not in tried)
    won = max(winners(ctx, definition), key=lower_bound, default=None)
    return (won.solution.structure,) if won else ctx.catalog.audited(definition)


def _tried(ctx: Context, definition: str) -> set[str]:
    plans = [s.body for s in ctx.store.list(RecordKind.EXPERIMENT)]
    return {name for p in plans if p["definition"] == definition for name in p["structures"]}


def gains(ctx: Context, definitions: Iterable[str]) -> dict[str, float]:
    """Return the gain that earlier experiments found per definition, by family.

    A kernel with a variant in force has had that gain already.
    """
    won = {name: winners(ctx, name) for name in definitions if in_force(ctx.store, name) is None}
    return {name: max(map(lower_bound, found)) for name, found in won.items() if found}


def open_belief(ctx: Context, hypothesis: Hypothesis) -> None:
    """Write a hypothesis that waits for an experiment, again where it was dropped untested."""
    body = hypothesis.model_dump(mode="json")
    if ctx.store.add(RecordKind.HYPOTHESIS, hypothesis.id, body, phase="open") or any(
        ctx.store.advance(RecordKind.HYPOTHESIS, hypothesis.id, expect=phase, to="open", body=body)
        for phase in _UNTESTED[1:]
    ):
        log.info("hypothesis: %s", hypothesis.because)
        ctx.telemetry.count("retuned_hypotheses_total")
