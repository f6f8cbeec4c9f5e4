"""Sentinels in a pod: promoted swaps that the operator asks to be measured, a pair in each period.

The pairs are run by `retuned.node.sentinel`, on the thread of live proofs. They begin with the fit
of the proof that this pod has made. The operator computes the verdict of each day again from its
pairs, and decides what follows.
"""

from __future__ import annotations

import logging
import threading

from pydantic import ValidationError

from retuned.errors import RetunedError
from retuned.node import sentinel
from retuned.node.live_proof import LIVE_PROOF, PROVING, report_in
from retuned.node.sentinel import DAY, SENTINEL
from retuned.node.service_levels import lacks_levels, levels_of
from retuned.ports import Stored
from retuned.sidecar import live_proofs
from retuned.sidecar.context import Context
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.proof import SentinelPlan

log = logging.getLogger(__name__)


def keep_up(ctx: Context, stop: threading.Event) -> None:
    """Run each pair whose moment has come, and draw the moments of the next."""
    for kept in live_proofs.in_force(ctx):
        asked = live_proofs.asked_day(ctx, kept.order.id)
        if stop.is_set() or ctx.live_steps is None:
            return
        if asked is None or not asked.rule.sentinel:
            continue
        if lacks_levels(ctx.service_counts, asked.rule):
            log.debug("%s is not measured: no service levels are known", kept.order.definition)
            continue
        try:
            sentinel.keep_up(
                _Swap(ctx, kept.order),
                kept.order,
                asked.rule,
                swapper=ctx.swapper,
                live=ctx.live_steps,
                clock=ctx.clock,
                levels=levels_of(ctx.service_counts, asked.rule),
                stop=stop,
            )
        except RetunedError as error:
            log.info("the sentinel of %s waits: %s", kept.order.definition, error)


class _Swap:
    """A promoted swap in a pod; see `SentinelSwap`. Its records are found by the order."""

    def __init__(self, ctx: Context, order: SwapOrder) -> None:
        self._ctx, self._order = ctx, order

    def plan(self) -> SentinelPlan | None:
        return sentinel.plan_in(self._ctx.store.get(SENTINEL, self._order.id))

    def keep_plan(self, plan: SentinelPlan) -> None:
        sentinel.keep_plan(self._ctx.store, plan, kind=SENTINEL, id=self._order.id)

    def day(self, plan: SentinelPlan) -> _Day:
        return _Day(self._ctx, self._order, id=f"{self._order.id}/{sentinel.day_id(plan)}")

    def earlier(self) -> proof.ProofState | None:
        return earlier_proof(self._ctx, self._order.id)

    def may_begin(self) -> bool:
        return live_proofs.asked_day(self._ctx, self._order.id) is not None

    def unavailable(self) -> str:
        return live_proofs.unavailable(self._ctx)[0]


class _Day(live_proofs.PodProofRecord):
    """The proof of one day of a swap in a pod."""

    def __init__(self, ctx: Context, order: SwapOrder, *, id: str) -> None:
        super().__init__(ctx, order, asked=live_proofs.asked_day, what=SENTINEL, kind=DAY, id=id)
        self._name = id

    def report(self) -> proof.ProofReport | None:
        """Return the verdict; None without one."""
        return report_in(self._ctx.store.get(DAY, self._name))


def earlier_proof(ctx: Context, order: str) -> proof.ProofState | None:
    """Return the newest proof of an order with a fit, of its sentinel first; None without one."""
    for day in live_proofs.days_of(ctx, order):
        state = _state(day)
        if state is not None and state.fit is not None:
            return state
    first = ctx.store.get(LIVE_PROOF, order)
    state = None if first is None or first.phase == PROVING else _state(first)
    return state if state is not None and state.fit is not None else None


def _state(stored: Stored) -> proof.ProofState | None:
    try:
        return proof.ProofState.model_validate(stored.body["state"])
    except (KeyError, ValidationError) as error:  # of another release
        log.warning("the proof %s cannot be read: %s", stored.id, error)
        return None
