"""Sentinel of promoted swaps on one machine; the pairs are run by `retuned.node.sentinel`.

It runs on the thread of live proofs.
"""

from __future__ import annotations

import logging
import threading

from retuned.api.proposal import ProposalPhase
from retuned.errors import RetunedError
from retuned.node import sentinel
from retuned.node.live_proof import ProofNeed
from retuned.node.order_store import bringer
from retuned.node.service_levels import levels_of
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.proof import SentinelPlan
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.proofs import live_proof
from retuned.standalone.proofs.repeated_proof import (
    SENTINEL,
    RepeatedProof,
    day_state,
    newest_state,
)
from retuned.standalone.records import committed
from retuned.telemetry.metric_types import Row

log = logging.getLogger(__name__)


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
    assert ctx.live_steps is not None, "the caller has seen it"
    sentinel.keep_up(
        _Swap(ctx, order, proposal=proposal),
        order,
        rule,
        swapper=ctx.swapper,
        live=ctx.live_steps,
        clock=ctx.clock,
        levels=levels_of(ctx.service_counts, rule),
        stop=stop,
    )


class _Swap:
    """A promoted swap on one machine; see `SentinelSwap`."""

    def __init__(self, ctx: Context, order: SwapOrder, *, proposal: str) -> None:
        self._ctx, self._order, self._proposal = ctx, order, proposal

    def plan(self) -> SentinelPlan | None:
        return sentinel.plan_in(self._ctx.store.get(RecordKind.SENTINEL, self._proposal))

    def keep_plan(self, plan: SentinelPlan) -> None:
        sentinel.keep_plan(self._ctx.store, plan, kind=RecordKind.SENTINEL, id=self._proposal)

    def day(self, plan: SentinelPlan) -> RepeatedProof:
        return RepeatedProof(
            self._ctx,
            self._order,
            proposal=self._proposal,
            cause=SENTINEL,
            number=sentinel.day_id(plan),
        )

    def earlier(self) -> proof.ProofState | None:
        found = newest_state(self._ctx, self._proposal)
        return found if found is not None and found.fit is not None else None

    def may_begin(self) -> bool:
        return live_proof.unless_frozen(self._ctx, self._order) is ProofNeed.CONTINUE

    def unavailable(self) -> str:
        return live_proof.unavailable(self._ctx, self._proposal)
