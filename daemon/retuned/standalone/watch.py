"""Step 10: watch what is in force, keep what is clean, go back from what is wrong.

Step 10, the canary: the next step of a swap that not all launches run yet.
"""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.node.history import History
from retuned.ports import Stored
from retuned.stages import watch as watch_stage
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import (
    CanaryAction,
    CanaryDecision,
    Consequence,
    WatchAction,
    WatchReport,
    WatchSample,
    decide_canary,
)
from retuned.standalone import end_to_end
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.order_delivery import roll_back
from retuned.standalone.orders import IN_PLACE, latest, owner, say

log = logging.getLogger(__name__)

_MOVES = (CanaryAction.ADVANCE, CanaryAction.NARROW_GUARD)


def move_on(
    ctx: Context, order: SwapOrder, stored: Stored, *, sample: WatchSample, report: WatchReport
) -> CanaryDecision | None:
    """Take the next step of a canary if it is due; None where the order is no canary.

    What is to go back is the watch's to bring back.
    """
    if not order.canary or order.artifact is None:
        return None
    decision = decide_canary(order, sample, report=report)
    if decision.action not in _MOVES:
        return decision
    try:
        ctx.swapper.ramp(order, fraction=decision.fraction, excluded=decision.excluded)
    except (CandidateError, TemporaryError) as error:  # some may have it: they are told again
        log.info("the canary of %s waits: %s", order.definition, error)
        return decision
    say(
        ctx,
        stored.id,
        f"canary-{decision.action}",
        reason=str(decision.reason),
        detail=decision.detail,
        fraction=decision.fraction,
        left_out=[list(bucket) for bucket in decision.excluded],
        slot=order.definition,
    )
    ctx.telemetry.count("retuned_canary_steps_total", action=str(decision.action))
    log.info("%s: %s, now %.1f %%", order.definition, decision.reason, 100 * decision.fraction)
    return decision


BLAMELESS = frozenset({"orphaned"})
"""Reasons to go back by itself that say nothing against the artifact."""


def watch(ctx: Context, history: History) -> list[WatchReport]:
    """Judge every swap in force on what the runtime counted; roll back what is wrong."""
    watched = _watched(ctx)
    history.forget_all_but([order.id for order, _ in watched])
    if not watched:
        return []
    try:
        samples = {sample.definition: sample for sample in ctx.swapper.samples()}
    except TemporaryError as error:
        log.info("nothing to watch: %s", error)
        return []
    reports = []
    for order, stored in watched:
        sample = samples.get(order.definition)
        if sample is None or sample.epoch != order.epoch:
            history.restart([order.id])  # drive_orders will bring the server up to it
            continue
        now_s = ctx.clock.monotonic_s()
        seen = history.extend(order, sample, now_s=now_s)
        report = watch_stage.assess(
            order,
            list(seen.samples),
            seconds_since_commit=now_s - seen.since_s,
            settings=ctx.settings.watch,
        )
        reports.append(report)
        about = {"proposal": stored.id, "kernel": order.definition, "reason": str(report.reason)}
        try:
            with ctx.spans.span("watch", after=stored.traceparent, about=about):
                _act(ctx, order, stored, report, sample=sample)
        except RetunedError as error:  # the next slot may be the one that does harm
            log.error("watch of %s: %s", order.definition, error)
    return reports


def _watched(ctx: Context) -> list[tuple[SwapOrder, Stored]]:
    """Return the newest order that each slot has carried out, with the proposal it belongs to."""
    found = []
    for kept in latest(ctx, done=True).values():
        proposal = owner(ctx, kept.order)
        stored = ctx.store.get(RecordKind.PROPOSAL, proposal) if proposal is not None else None
        if stored is not None and stored.phase in IN_PLACE:
            found.append((kept.order, stored))
    return found


def _act(
    ctx: Context, order: SwapOrder, stored: Stored, report: WatchReport, *, sample: WatchSample
) -> None:
    if report.action is WatchAction.ROLLBACK:
        _back(ctx, stored, reason=report.reason, detail=report.detail, sample=sample)
        return
    move_on(ctx, order, stored, sample=sample, report=report)
    then, reason, detail = end_to_end.follows(ctx, order, stored)
    if then is Consequence.REVERT:
        _back(ctx, stored, reason=reason, detail=detail, sample=sample)
    elif (
        report.action is WatchAction.KEEP
        and then is Consequence.KEEP
        and stored.phase == "watching"
    ):
        with ctx.store.transaction():
            if ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="watching", to="promoted"):
                say(ctx, stored.id, "promoted", reason=report.reason, detail=report.detail)


def _back(ctx: Context, stored: Stored, *, reason: str, detail: str, sample: WatchSample) -> None:
    roll_back(
        ctx,
        stored,
        reason=reason,
        detail=detail,
        who="retuned",
        after=sample.epoch,
        quarantine=sample.tripped not in BLAMELESS,
    )
