"""Watcher: judges every swap in force by the runtime's counts, and rolls back what does harm.

Stage 10 judges. The watcher needs no control plane: without one it continues, and so do rollbacks.
"""

from __future__ import annotations

import logging
from typing import Literal

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.node.order_context import OrderContext
from retuned.node.order_executor import carry_out, write_rollback
from retuned.node.order_store import StoredOrder, about, bringer, latest
from retuned.stages import watch as watch_stage
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import (
    CanaryAction,
    WatchAction,
    WatchReport,
    WatchSample,
    WatchSettings,
)

log = logging.getLogger(__name__)

_DEMO_CHECKS = 100
"""Clean checks that keep a swap there: they bound a failure rate of 3 % with 95 % confidence."""
_DEMO_S = 10.0
_MOVES = (CanaryAction.ADVANCE, CanaryAction.NARROW_GUARD)


def kept_after(preset: Literal["production", "demo"]) -> WatchSettings:
    """Return how much evidence keeps a swap; a server that is shown launches little."""
    if preset == "demo":
        return WatchSettings(min_checks=_DEMO_CHECKS, min_s=_DEMO_S)
    return WatchSettings()


def watch(ctx: OrderContext) -> list[WatchReport]:
    """Judge every committed order that runs an artifact."""
    standing = ctx.standing
    watched = [
        kept
        for kept in latest(ctx.store).values()
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
        sample = samples.get(kept.order.definition)
        if sample is None or sample.epoch != kept.order.epoch:
            standing.history.restart([kept.order.id])  # the executor delivers the order again
            continue
        report = _watch_one(ctx, kept, sample)
        if report is not None:
            reports.append(report)
    return reports


def _watch_one(ctx: OrderContext, kept: StoredOrder, sample: WatchSample) -> WatchReport | None:
    """Judge one order; None after an error, because the next slot may be the one that does harm."""
    try:
        with ctx.spans.span("watch", after=kept.traceparent, about=about(kept.order)):
            return _judge(ctx, kept.order, sample)
    except RetunedError as error:
        log.error("watch of %s: %s", kept.order.definition, error)
        return None


def _judge(ctx: OrderContext, order: SwapOrder, sample: WatchSample) -> WatchReport:
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
        if write_rollback(ctx, order, report, after=sample.epoch):
            carry_out(ctx, only=order.definition)
    else:
        _ramp(ctx, order, sample, report)
    return report


def _note(ctx: OrderContext, order: SwapOrder, report: WatchReport) -> None:
    """Keep the last report; send a new action to the control plane immediately."""
    concerned = bringer(ctx.store, order).proposal
    proposal, before = ctx.standing.reports.get(order.definition, ("", None))
    ctx.standing.reports[order.definition] = (concerned, report)
    if before is None or (proposal, before.action) != (concerned, report.action):
        ctx.standing.news.set()


def _ramp(ctx: OrderContext, order: SwapOrder, sample: WatchSample, report: WatchReport) -> None:
    """Take the next step of a canary over the launches of this server, if it is due."""
    if not order.canary:
        return
    decision = watch_stage.decide_canary(order, sample, report=report)
    if decision.action not in _MOVES:
        return
    try:
        ctx.swapper.ramp(order, fraction=decision.fraction, excluded=decision.excluded)
    except (CandidateError, TemporaryError) as error:  # some processes may have it; it is repeated
        log.info("the canary of %s waits: %s", order.definition, error)
        return
    ctx.ramped(order, decision)
    ctx.telemetry.count("retuned_canary_steps_total", action=str(decision.action))
    log.info("%s: %s, now %.1f %%", order.definition, decision.reason, 100 * decision.fraction)
