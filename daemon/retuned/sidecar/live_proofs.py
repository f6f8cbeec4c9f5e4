"""Live proofs in a pod: swaps that the operator asks for are proven, and reported with their pairs.

The runner is `retuned.node.live_proof`, its states are in the pod's store. A proof continues while
the operator is unreachable. It ends if the operator no longer asks for it. The operator computes
the verdict again from the pairs and decides what follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice

from pydantic import ValidationError

from retuned.api.agent import (
    MAX_PROOFS,
    AlarmOrder,
    LevelsState,
    PodBoot,
    PodProof,
    ProofOrder,
    ProofPost,
    older,
)
from retuned.errors import Refused, TemporaryError
from retuned.node import live_proof as node_proof
from retuned.node.live_proof import (
    LIVE_PROOF,
    PROVING,
    ProofNeed,
    ProofRunner,
    StoredProof,
    claim_of,
    report_in,
)
from retuned.node.order_store import StoredOrder, latest
from retuned.node.sentinel import DAY
from retuned.node.service_levels import lacks_levels, levels_of
from retuned.ports import Stored
from retuned.sidecar import own_overhead
from retuned.sidecar.context import Context
from retuned.sidecar.reports import is_about_us
from retuned.sidecar.store import TRIAL
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.proof.records import MAX_PAIRS

log = logging.getLogger(__name__)

_NOT_SWITCHABLE = "not-switchable"
_LOOK_S = 10.0
"""Interval between checks whether the server's steps can be timed, seconds."""
_READ_S = 60.0
"""How long an answer holds that service levels can be read, seconds: a page may have megabytes."""


_REPORTED = timedelta(hours=1)
_NAME = 200
"""Longest name of an engine: a lesson has it."""


def prove(ctx: Context, stop: threading.Event) -> None:
    """Prove the swaps that the operator asks for, until each has a verdict or `stop` is set."""
    switch_on(ctx)
    for kept in in_force(ctx):
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
            record=_record(ctx, kept.order),
            swapper=ctx.swapper,
            live=ctx.live_steps,
            clock=ctx.clock,
            levels=levels_of(ctx.service_counts, asked.rule),
        ).run(stop)


def switch_on(ctx: Context) -> None:
    """Switch on swaps that a proof has left off and that the operator keeps."""
    wanted = {
        (kept.order.definition, kept.order.artifact)
        for kept in in_force(ctx)
        if kept.order.id in ctx.standing.named
        and _asked(ctx, kept.order.id) is None
        and _was_switched(ctx, kept.order.id)
        and not _harms(ctx, kept.order.id)
    }
    node_proof.switch_on(ctx.swapper, wanted)


def _harms(ctx: Context, order: str) -> bool:
    """Whether the newest day of a sentinel, or trial, has shown harm: its rollback comes."""
    harms, prefix = str(proof.Verdict.HARMS), f"{order}/"
    return any(
        ctx.store.ids(kind, phase=harms, prefix=prefix)[-1:] == ids[-1:]
        for kind in (DAY, TRIAL)
        if (ids := ctx.store.ids(kind, prefix=prefix))
    )


def _was_switched(ctx: Context, order: str) -> bool:
    """Whether a proof or a trial may have left a swap off."""
    proven = ctx.store.get(LIVE_PROOF, order) is not None
    return proven or bool(ctx.store.ids(TRIAL, prefix=f"{order}/"))


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
        memory.levels = LevelsState.UNREADABLE
    memory.levels_at_s = now_s
    return memory.levels


def post(ctx: Context, *, boot: PodBoot | None = None) -> None:
    """Report whether swaps can be proven here, and each proof that the operator asks for.

    Parameters
    ----------
    boot
        What a canary replica has measured of its boot; None in other pods.

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
    days = tuple(_days(ctx, pairs=_pairs(proofs)))
    trials = tuple(_trials(ctx, pairs=_pairs((*proofs, *days))))
    said = ProofPost(
        pod=ctx.pod,
        target=ctx.target,
        unavailable=reason,
        temporary=temporary,
        levels=levels_seen(ctx),
        days=days,
        trials=trials,
        overhead=own_overhead.reported(
            ctx, most_pairs=MAX_PAIRS - _pairs((*proofs, *days, *trials))
        ),
        engine=ctx.live_steps.engine()[:_NAME] if ctx.live_steps is not None else "",
        proofs=proofs,
        boot=boot,
    )
    try:
        answer = ctx.operator.post(older(said, version=ctx.standing.version))
    except Refused as error:
        if is_about_us(error) and error.code != "status-404":
            raise
        log.debug("the operator takes no live proofs: %s", error)
        return
    if answer.unheard:
        ctx.standing.hello_at_s = float("-inf")


class PodProofRecord(StoredProof):
    """A proof of one order in a pod, for as long as the operator asks for it.

    Parameters
    ----------
    ctx
        Ports of the pod.
    order
        The order in force.
    asked
        Returns what the operator asks of an order; an operator that does not answer has not taken
        it back.
    what
        The kind of proof, for logs.
    kind, id
        Of the record.
    """

    def __init__(
        self,
        ctx: Context,
        order: SwapOrder,
        *,
        asked: Callable[[Context, str], object | None],
        what: str,
        kind: str,
        id: str,
    ) -> None:
        super().__init__(ctx.store, order, kind=kind, id=id)
        self._ctx, self._asked, self._what = ctx, asked, what

    def need(self) -> ProofNeed:
        """See `ProofRecord.need`."""
        asked = self._asked(self._ctx, self._order.id) is not None
        return ProofNeed.CONTINUE if asked else ProofNeed.END

    def finish(self, state: proof.ProofState) -> None:
        """Keep the verdict; the next report has it."""
        report = state.report
        assert report is not None, "a proof that is done has one"
        body = self.body(state) | {"report": report.model_dump(mode="json")}
        if self.advance(body, to=str(report.verdict)):
            self._ctx.standing.news.set()
            name = self._order.definition
            log.info("%s %s: %s (%s)", name, self._what, report.verdict, report.reason)


def _record(ctx: Context, order: SwapOrder) -> PodProofRecord:
    return PodProofRecord(ctx, order, asked=_asked, what="live proof", kind=LIVE_PROOF, id=order.id)


def in_force(ctx: Context) -> list[StoredOrder]:
    """Return the swaps that the server runs."""
    return [
        kept
        for kept in latest(ctx.store).values()
        if kept.phase == "done" and kept.order.kind is SwapKind.SWAP
    ]


def _asked(ctx: Context, order: str) -> ProofOrder | None:
    return next((e for e in ctx.standing.proofs if e.order == order and not e.sentinel), None)


def _reported(ctx: Context, asked: ProofOrder) -> PodProof | None:
    """Return what is known of a proof; None before it began, or of a sentinel."""
    record = None if asked.sentinel else ctx.store.get(LIVE_PROOF, asked.order)
    return None if record is None else _pod_proof(asked, record)


def asked_day(ctx: Context, order: str) -> ProofOrder | None:
    """Return what the operator asks for of the sentinel of an order; None if it asks for none."""
    return next((e for e in ctx.standing.proofs if e.order == order and e.sentinel), None)


def asked_alarm(ctx: Context, order: str) -> AlarmOrder | None:
    """Return the leave of the operator to try an order off at an alarm; None without it."""
    return next((each for each in ctx.standing.alarms if each.order == order), None)


def days_of(ctx: Context, order: str, *, kind: str = DAY) -> Iterator[Stored]:
    """Yield the days of the sentinel of an order, newest first, each read when it is needed.

    Parameters
    ----------
    kind
        `DAY`, or `TRIAL` for trials instead.
    """
    for id in reversed(ctx.store.ids(kind, prefix=f"{order}/")):
        stored = ctx.store.get(kind, id)
        if stored is not None:
            yield stored


def _days(ctx: Context, *, pairs: int) -> Iterator[PodProof]:
    """Yield the newest day of each sentinel that has ended, as far as a post has room for pairs."""
    asked = [each for each in ctx.standing.proofs if each.sentinel]
    return _ended(ctx, asked, kind=DAY, pairs=pairs)


def _trials(ctx: Context, *, pairs: int) -> Iterator[PodProof]:
    """Yield the newest trial of each swap that has ended, as far as a post has room for pairs."""
    orders = {kept.order.id: kept.order for kept in in_force(ctx)}
    asked = [
        ProofOrder(
            order=order.id,
            proposal=order.proposal,
            definition=order.definition,
            epoch=order.epoch,
            rule=each.rule,
        )
        for each in ctx.standing.alarms
        if (order := orders.get(each.order)) is not None
    ]
    return islice(_ended(ctx, asked, kind=TRIAL, pairs=pairs), MAX_PROOFS)


def _ended(
    ctx: Context,
    asked: Iterable[ProofOrder],
    *,
    kind: str,
    pairs: int,
) -> Iterator[PodProof]:
    """Yield the newest record of a kind of each order that has a verdict.

    The operator writes it into a status, so that one without harm is reported for an hour only.
    """
    now, harms = ctx.clock.now(), str(proof.Verdict.HARMS)
    for each in asked:
        ended = next((e for e in days_of(ctx, each.order, kind=kind) if e.phase != PROVING), None)
        if ended is None or (ended.phase != harms and now - ended.updated_at > _REPORTED):
            continue
        found = _pod_proof(each, ended)
        if found is None or pairs + found.pairs > MAX_PAIRS:
            continue
        pairs += found.pairs
        yield found


def _pairs(proofs: Iterable[PodProof]) -> int:
    return sum(each.pairs for each in proofs if each.claim is not None)


def _pod_proof(asked: ProofOrder, record: Stored) -> PodProof | None:
    """Return the report of a stored proof; None if the record cannot be understood."""
    report, state = report_in(record), record.body["state"]
    try:
        return PodProof(
            order=asked.order,
            proposal=asked.proposal,
            definition=asked.definition,
            epoch=asked.epoch,
            phase=state["phase"],
            pairs=len(state["pairs"]) + len(state["pilot"]),
            claim=claim_of(report, state) if report is not None else None,
        )
    except (KeyError, ValidationError) as error:  # of another release
        log.warning("the proof of %s is not reported: %s", asked.definition, error)
        return None
