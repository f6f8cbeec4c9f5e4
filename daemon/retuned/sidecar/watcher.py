"""Step 10 in a pod: judge every swap in force by what was counted; go back from what does harm.

The judging is stage 10's. It needs nobody: with the operator away it goes on, and the way back too.
"""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, TemporaryError
from retuned.sidecar.context import Context
from retuned.sidecar.order_executor import carry_out, write_way_back
from retuned.sidecar.order_store import about, latest
from retuned.stages import watch as watch_stage
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import CanaryAction, WatchAction, WatchReport, WatchSample

log = logging.getLogger(__name__)

_MOVES = (CanaryAction.ADVANCE, CanaryAction.NARROW_GUARD)


def watch(ctx: Context) -> list[WatchReport]:
    """Judge every order in force that runs an artifact."""
    standing = ctx.standing
    watched = [
        kept
        for kept in latest(ctx).values()
        if kept.phase == "done" and kept.order.artifact is not None
    ]
    standing.history.forget_all_but([kept.order.id for kept in watched])
    if not watched:
        return []
    try:
        samples = {sample.definition: sample for sample in ctx.swapper.samples()}
    except TemporaryError as error:
        log.info("nothing to watch: %s", error)
        return []
    reports = []
    for kept in watched:
        order = kept.order
        sample = samples.get(order.definition)
        if sample is None or sample.epoch != order.epoch:
            standing.history.restart([order.id])  # it will be brought up to it
            continue
        with ctx.spans.span("watch", after=kept.traceparent, about=about(order)):
            reports.append(_judge(ctx, order, sample))
    return reports


def _judge(ctx: Context, order: SwapOrder, sample: WatchSample) -> WatchReport:
    now_s = ctx.clock.monotonic_s()
    seen = ctx.standing.history.extend(order, sample, now_s=now_s)
    report = watch_stage.assess(
        order,
        list(seen.samples),
        seconds_since_commit=now_s - seen.since_s,
        settings=ctx.settings.watch,
    )
    _note(ctx, order, report)
    if report.action is WatchAction.ROLLBACK:
        if write_way_back(ctx, order, report, after=sample.epoch):
            carry_out(ctx, only=order.definition)
    else:
        _move_on(ctx, order, sample, report)
    return report


def _note(ctx: Context, order: SwapOrder, report: WatchReport) -> None:
    """Keep what was judged last; the operator hears at once of what it has not heard before."""
    proposal, before = ctx.standing.reports.get(order.definition, ("", None))
    ctx.standing.reports[order.definition] = (order.proposal, report)
    if before is None or (proposal, before.action) != (order.proposal, report.action):
        ctx.standing.news.set()


def _move_on(ctx: Context, order: SwapOrder, sample: WatchSample, report: WatchReport) -> None:
    """Take the next step of a canary over the launches of this server, if it is due."""
    if not order.canary:
        return
    decision = watch_stage.decide_canary(order, sample, report=report)
    if decision.action not in _MOVES:
        return
    try:
        ctx.swapper.ramp(order, fraction=decision.fraction, excluded=decision.excluded)
    except (CandidateError, TemporaryError) as error:  # some may have it: they are told again
        log.info("the canary of %s waits: %s", order.definition, error)
        return
    ctx.telemetry.count("retuned_canary_steps_total", action=str(decision.action))
    log.info("%s: %s, now %.1f %%", order.definition, decision.reason, 100 * decision.fraction)
