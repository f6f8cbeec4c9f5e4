"""Sentinel of promoted swaps on one machine: a pair of long blocks at a random moment of a period.

It runs on the thread of live proofs. The moment is stored before its period begins; the state of a
day is kept as that of any proof.
"""

from __future__ import annotations

import logging
import secrets
import threading

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.errors import RetunedError
from retuned.node.live_proof import ProofNeed, ProofRunner
from retuned.node.order_store import bringer
from retuned.node.service_levels import levels_of
from retuned.ports import Stored
from retuned.stages.gate import LiveProof
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.proof import SentinelAction, SentinelPlan
from retuned.standalone import live_proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import committed
from retuned.standalone.repeated_proof import (
    SENTINEL,
    RepeatedProof,
    day_state,
    newest_state,
)
from retuned.telemetry.metric_types import Row

log = logging.getLogger(__name__)

CURRENT = "current"
_DAY = {"long_blocks": 0, "max_duration_s": proof.DAY_S}


def keep_up(ctx: Context, stop: threading.Event) -> None:
    """Run each pair whose moment has come, and draw the moments of the next."""
    if ctx.live_steps is None:
        return
    for kept in committed(ctx.store).values():
        if stop.is_set():
            return
        try:
            _keep_up(ctx, kept.order, stop)
        except (RetunedError, OSError) as error:
            log.info("the sentinel of %s waits: %s", kept.order.definition, error)


def effect_rows(ctx: Context) -> list[Row]:
    """Return step time with each promoted swap over that without, by the pairs of the day."""
    rows: list[Row] = []
    for kept in committed(ctx.store).values():
        state = day_state(ctx.store, bringer(ctx.store, kept.order).proposal)
        effect = None if state is None else proof.effect_so_far(state)
        if effect is not None:
            rows.append(({"kernel": kept.order.definition}, 1.0 + proof.percent_of(effect) / 100.0))
    return rows


def _keep_up(ctx: Context, order: SwapOrder, stop: threading.Event) -> None:
    proposal = bringer(ctx.store, order).proposal
    stored = ctx.store.get(RecordKind.PROPOSAL, proposal)
    rule = live_proof.rule_of(ctx, order.definition)
    promoted = stored is not None and stored.phase == ProposalPhase.PROMOTED
    if order.artifact is None or not promoted or rule is None or not rule.sentinel:
        return
    now_s = ctx.clock.now().timestamp()
    plan = _plan(ctx.store.get(RecordKind.SENTINEL, proposal))
    action = SentinelAction.DRAW if plan is None else proof.action_of(plan, now_s=now_s)
    if action is SentinelAction.WAIT:
        return
    if (
        plan is not None
        and action is SentinelAction.MEASURE
        and not _measured(ctx, order, rule, proposal=proposal, plan=plan, stop=stop)
    ):
        return  # later in the same period
    now_s = ctx.clock.now().timestamp()
    if plan is not None:
        record = _record(ctx, order, proposal=proposal, plan=plan)
        if proof.is_over(plan, now_s=now_s):
            _end_day(record, at_s=now_s)
        report = record.report()
        if report is not None and report.reason is proof.ProofReason.INTERRUPTED:
            plan = None  # such as by a restart of the server: another day begins
    _draw(ctx, rule, proposal=proposal, last=plan, now_s=now_s)


def _measured(
    ctx: Context,
    order: SwapOrder,
    rule: LiveProof,
    *,
    proposal: str,
    plan: SentinelPlan,
    stop: threading.Event,
) -> bool:
    """Run one pair; False if it cannot run now."""
    if live_proof.unless_frozen(ctx, order) is not ProofNeed.CONTINUE:
        return False
    if live_proof.unavailable(ctx, proposal):
        return True
    earlier = newest_state(ctx, proposal)
    if earlier is None or earlier.fit is None:
        return True  # it was kept without a proof, so no fit is known
    assert ctx.live_steps is not None, "the caller has seen it"
    settings = proof.settings_of(rule).model_copy(update=_DAY)
    ProofRunner(
        order,
        rule,
        record=_record(ctx, order, proposal=proposal, plan=plan),
        swapper=ctx.swapper,
        live=ctx.live_steps,
        clock=ctx.clock,
        first=lambda _at_s: proof.begin_again(
            earlier, settings, at_s=plan.day_began_s, sentinel=True
        ),
        kept=True,
        levels=levels_of(ctx.service_counts, rule),
    ).run(stop, most_pairs=1)
    return True


def _record(ctx: Context, order: SwapOrder, *, proposal: str, plan: SentinelPlan) -> RepeatedProof:
    number = f"{int(plan.day_began_s):012d}"  # ids of days sort by time
    return RepeatedProof(ctx, order, proposal=proposal, cause=SENTINEL, number=number)


def _end_day(record: RepeatedProof, *, at_s: float) -> None:
    """Write what a day has shown, if its last pair did not."""
    state = record.known()
    if state is None or state.done:
        return
    if state.plan is not None:
        state = proof.step(state, proof.PairAbandoned(state.plan.number, at_s=at_s))
    state = proof.step(state, proof.Tick(at_s=at_s))
    if state.done:
        record.finish(state)


def _draw(
    ctx: Context, rule: LiveProof, *, proposal: str, last: SentinelPlan | None, now_s: float
) -> None:
    plan = proof.next_plan(
        last,
        settings=proof.settings_of(rule),
        share=rule.sentinel,
        coin=secrets.SystemRandom(),
        now_s=now_s,
    )
    body = plan.model_dump(mode="json")
    if not ctx.store.add(RecordKind.SENTINEL, proposal, body, phase=CURRENT):
        ctx.store.advance(RecordKind.SENTINEL, proposal, expect=CURRENT, to=CURRENT, body=body)


def _plan(stored: Stored | None) -> SentinelPlan | None:
    if stored is None:
        return None
    try:
        return SentinelPlan.model_validate(stored.body)
    except ValidationError as error:
        log.warning("the sentinel of %s begins again: %s", stored.id, error)
        return None
