"""Step 10: watch what is in force, keep what is clean, go back from what is wrong."""

from __future__ import annotations

import logging

from retuned.errors import RetunedError, TemporaryError
from retuned.local import end_to_end, spreading
from retuned.local.context import Context, RecordKind
from retuned.local.ordered import IN_PLACE, latest, owner, say
from retuned.local.swapping import roll_back
from retuned.observing.seen import History
from retuned.ports import Stored
from retuned.stages import watch as watch_stage
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import Consequence, WatchAction, WatchReport, WatchSample

log = logging.getLogger(__name__)

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
    spreading.move_on(ctx, order, stored, sample=sample, report=report)
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
