"""Live proofs in a pod: swaps that the operator asks for are proven, and reported with their pairs.

The runner is `retuned.node.live_proof`, its states are in the pod's store. A proof continues while
the operator is unreachable. It ends if the operator no longer asks for it. The operator computes
the verdict again from the pairs and decides what follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from retuned.api.agent import LevelsState, PodProof, ProofOrder, ProofPost
from retuned.errors import Refused, TemporaryError
from retuned.node import live_proof as node_proof
from retuned.node.live_proof import (
    LIVE_PROOF,
    PROVING,
    ProofNeed,
    ProofRunner,
    StoredProof,
    report_in,
)
from retuned.node.order_store import StoredOrder, latest
from retuned.node.service_levels import lacks_levels, levels_of
from retuned.sidecar.context import Context
from retuned.sidecar.reports import is_about_us
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import proof

log = logging.getLogger(__name__)

_NOT_SWITCHABLE = "not-switchable"
_LOOK_S = 10.0
"""How often the server is asked whether its steps can be timed, seconds."""
_READ_S = 60.0
"""How long an answer holds that service levels can be read, seconds: a page may have megabytes."""


_NAME = 200
"""Longest name of an engine: a lesson has it."""


def prove(ctx: Context, stop: threading.Event) -> None:
    """Prove the swaps that the operator asks for, until each has a verdict or `stop` is set."""
    switch_on(ctx)
    for kept in _in_force(ctx):
        if stop.is_set() or ctx.live_steps is None:
            return
        asked = _asked(ctx, kept.order.id)
        record = ctx.store.get(LIVE_PROOF, kept.order.id)
        if asked is None or (record is not None and record.phase != PROVING):
            continue
        if lacks_levels(ctx.service_counts, asked.rule):
            log.warning("%s is not proven: no service levels are known", kept.order.definition)
            continue
        if record is None and unavailable(ctx)[0]:
            continue  # the operator learns why; a proof that has begun continues, its time goes on
        ProofRunner(
            kept.order,
            asked.rule,
            record=_Record(ctx, kept.order),
            swapper=ctx.swapper,
            live=ctx.live_steps,
            clock=ctx.clock,
            levels=levels_of(ctx.service_counts, asked.rule),
        ).run(stop)


def switch_on(ctx: Context) -> None:
    """Switch on swaps that a proof has left off and that the operator keeps."""
    wanted = {
        (kept.order.definition, kept.order.artifact)
        for kept in _in_force(ctx)
        if kept.order.id in ctx.standing.named
        and _asked(ctx, kept.order.id) is None
        and ctx.store.get(LIVE_PROOF, kept.order.id) is not None
    }
    node_proof.switch_on(ctx.swapper, wanted)


def unavailable(ctx: Context) -> tuple[str, bool]:
    """Return why steps cannot be timed, a reason code or empty, and whether that may pass."""
    memory, now_s = ctx.standing, ctx.clock.monotonic_s()
    if ctx.live_steps is None:
        return _NOT_SWITCHABLE, False
    if memory.steps_known and now_s - memory.steps_at_s < _LOOK_S:
        return memory.steps_unavailable, False
    try:
        memory.steps_unavailable = ctx.live_steps.unavailable()
    except TemporaryError as error:
        log.info("steps of the server are not known now: %s", error)
        memory.steps_known = False
        return "no-answer", True
    memory.steps_known, memory.steps_at_s = True, now_s
    return memory.steps_unavailable, False


def levels_seen(ctx: Context) -> LevelsState:
    """Return whether the server's service levels can be read."""
    memory, now_s = ctx.standing, ctx.clock.monotonic_s()
    if ctx.service_counts is None:
        return LevelsState.ABSENT
    holds_s = _READ_S if memory.levels is LevelsState.READ else _LOOK_S
    if now_s - memory.levels_at_s < holds_s:
        return memory.levels
    try:
        ctx.service_counts.read()
        memory.levels = LevelsState.READ
    except TemporaryError as error:
        log.info("service levels of the server cannot be read: %s", error)
        memory.levels = LevelsState.SILENT
    memory.levels_at_s = now_s
    return memory.levels


def post(ctx: Context) -> None:
    """Report whether swaps can be proven here, and each proof that the operator asks for.

    Raises
    ------
    TemporaryError, Refused
        As `Operator.post`. An operator of an older release does not know the report and does not
        ask for proofs.
    """
    if not ctx.target:
        return
    reason, temporary = unavailable(ctx)
    proofs = tuple(filter(None, (_reported(ctx, asked) for asked in ctx.standing.proofs)))
    said = ProofPost(
        pod=ctx.pod,
        target=ctx.target,
        unavailable=reason,
        temporary=temporary,
        levels=levels_seen(ctx),
        engine=ctx.live_steps.engine()[:_NAME] if ctx.live_steps is not None else "",
        proofs=proofs,
    )
    try:
        answer = ctx.operator.post(said)
    except Refused as error:
        if is_about_us(error) and error.code != "status-404":
            raise
        log.debug("the operator takes no live proofs: %s", error)
        return
    if answer.unheard:
        ctx.standing.hello_at_s = float("-inf")


class _Record(StoredProof):
    """The proof of one order in a pod; its record is found by the order."""

    def __init__(self, ctx: Context, order: SwapOrder) -> None:
        super().__init__(ctx.store, order, id=order.id)
        self._ctx = ctx

    def need(self) -> ProofNeed:
        """See `ProofRecord.need`; an operator that does not answer has not taken it back."""
        asked = _asked(self._ctx, self._order.id) is not None
        return ProofNeed.CONTINUE if asked else ProofNeed.END

    def finish(self, state: proof.ProofState) -> None:
        """Keep the verdict; the next report has it."""
        report = state.report
        assert report is not None, "a proof that is done has one"
        body = self.body(state) | {"report": report.model_dump(mode="json")}
        if self.advance(body, to=str(report.verdict)):
            self._ctx.standing.news.set()
            log.info("%s: %s (%s)", self._order.definition, report.verdict, report.reason)


def _in_force(ctx: Context) -> list[StoredOrder]:
    return [
        kept
        for kept in latest(ctx.store).values()
        if kept.phase == "done" and kept.order.kind is SwapKind.SWAP
    ]


def _asked(ctx: Context, order: str) -> ProofOrder | None:
    return next((each for each in ctx.standing.proofs if each.order == order), None)


def _reported(ctx: Context, asked: ProofOrder) -> PodProof | None:
    """Return what is known of a proof; None before it began."""
    record = ctx.store.get(LIVE_PROOF, asked.order)
    if record is None:
        return None
    report, state = report_in(record), record.body["state"]
    try:
        return PodProof(
            order=asked.order,
            proposal=asked.proposal,
            definition=asked.definition,
            epoch=asked.epoch,
            phase=state["phase"],
            pairs=len(state["pairs"]) + len(state["pilot"]),
            claim=_claim(report, state) if report is not None else None,
        )
    except (KeyError, ValidationError) as error:  # of another release
        log.warning("the proof of %s is not reported: %s", asked.definition, error)
        return None


def _claim(report: proof.ProofReport, state: Mapping[str, Any]) -> proof.ProofClaim:
    return proof.ProofClaim(
        verdict=report.verdict,
        reason=report.reason,
        pairs=state["pairs"],
        pilot_huge=state["pilot_huge"],
        seconds=report.seconds,
    )
