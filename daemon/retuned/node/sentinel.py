"""Sentinel of a kept swap beside one server: a pair of long blocks at a random moment of a period.

One machine and the sidecar run it, on the thread of live proofs. They differ in where the plan and
the days are kept, which is behind `SentinelSwap`. The moment is stored before its period begins;
the state of a day is kept as that of any proof.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Protocol

from pydantic import ValidationError

from retuned.node.live_proof import Levels, ProofRecord, ProofRunner, ReportingRecord
from retuned.ports import Clock, LiveSteps, Store, Stored, Swapper
from retuned.stages.gate import LiveProof
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.proof import SentinelAction, SentinelPlan

log = logging.getLogger(__name__)

SENTINEL = "sentinel"
"""Kind of the record of a pod's plan, by the order's id: current."""
DAY = "sentinel-day"
"""Kind of the records of a pod's days, by the order's id and the day: proving -> a verdict."""
CURRENT = "current"
"""Phase of the record of a plan."""


class SentinelSwap(Protocol):
    """A swap that was kept, as its node agent knows it."""

    def plan(self) -> SentinelPlan | None:
        """Return the plan of the next pair; None before the first."""
        ...

    def keep_plan(self, plan: SentinelPlan) -> None:
        """Store the plan of the next pair.

        Raises
        ------
        TemporaryError
            If it cannot be written.
        """
        ...

    def day(self, plan: SentinelPlan) -> ReportingRecord:
        """Return the record of the day of a plan."""
        ...

    def earlier(self) -> proof.ProofState | None:
        """Return the newest proof of the swap with a fit; None without one."""
        ...

    def may_begin(self) -> bool:
        """Whether a pair may begin now; otherwise it waits in its period."""
        ...

    def unavailable(self) -> str:
        """Return why the server cannot be measured, a reason code; empty if it can.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...


def keep_up(
    swap: SentinelSwap,
    order: SwapOrder,
    rule: LiveProof,
    *,
    swapper: Swapper,
    live: LiveSteps,
    clock: Clock,
    levels: Levels | None,
    stop: threading.Event,
) -> None:
    """Run the pair of a swap if its moment has come, and draw the moment of the next.

    Parameters
    ----------
    swap
        The swap.
    order
        Its order, which is in force.
    rule
        The policy's rule, with a sentinel.
    swapper, live, clock, levels
        As in `ProofRunner`.
    stop
        Ends the pair.

    Raises
    ------
    TemporaryError
        If the server does not answer, or a record cannot be written: call it again later.
    """
    now_s = clock.now().timestamp()
    plan = swap.plan()
    action = SentinelAction.DRAW if plan is None else proof.action_of(plan, now_s=now_s)
    if action is SentinelAction.WAIT:
        return
    if plan is not None and action is SentinelAction.MEASURE:
        if not swap.may_begin():
            return  # later in the same period
        earlier = None if swap.unavailable() else swap.earlier()
        if earlier is not None:  # without one it was kept without a proof, and no fit is known
            known, day_began_s = earlier, plan.day_began_s
            ProofRunner(
                order,
                rule,
                record=swap.day(plan),
                swapper=swapper,
                live=live,
                clock=clock,
                first=lambda _at_s: proof.begin_again(
                    known, proof.day_settings(rule), at_s=day_began_s, sentinel=True
                ),
                kept=True,
                levels=levels,
            ).run(stop, most_pairs=1)
    now_s = clock.now().timestamp()
    if plan is not None:
        day = swap.day(plan)
        if proof.is_over(plan, now_s=now_s):
            _end_day(day, at_s=now_s)
        report = day.report()
        if report is not None and report.reason is proof.ProofReason.INTERRUPTED:
            plan = None  # such as by a restart of the server: another day begins
    settings, share = proof.settings_of(rule), rule.sentinel
    coin = secrets.SystemRandom()
    swap.keep_plan(proof.next_plan(plan, settings=settings, share=share, coin=coin, now_s=now_s))


def _end_day(record: ProofRecord, *, at_s: float) -> None:
    """Write what a day has shown, if its last pair did not."""
    state = record.known()
    if state is None or state.done:
        return
    if state.plan is not None:
        state = proof.step(state, proof.PairAbandoned(state.plan.number, at_s=at_s))
    state = proof.step(state, proof.Tick(at_s=at_s))
    if state.done:
        record.finish(state)


def plan_in(stored: Stored | None) -> SentinelPlan | None:
    """Return the plan in a record; None without one, or if it cannot be read."""
    if stored is None:
        return None
    try:
        return SentinelPlan.model_validate(stored.body)
    except ValidationError as error:
        log.warning("the sentinel of %s begins again: %s", stored.id, error)
        return None


def keep_plan(store: Store, plan: SentinelPlan, *, kind: str, id: str) -> None:
    """Store a plan as the current one; see `SentinelSwap.keep_plan`."""
    body = plan.model_dump(mode="json")
    if not store.add(kind, id, body, phase=CURRENT):
        store.advance(kind, id, expect=CURRENT, to=CURRENT, body=body)


def day_id(plan: SentinelPlan) -> str:
    """Return the end of a day's record id; ids of days sort by time.

    Examples
    --------
    >>> day_id(SentinelPlan(day_began_s=86400.5, at_s=86500.0, until_s=87650.5))
    '000000086400'
    """
    return f"{int(plan.day_began_s):012d}"
