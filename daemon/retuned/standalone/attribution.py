"""Alarms about kernel times on one machine: swaps are tried off before an alarm names other causes.

`holds` keeps an alarm back while pairs of the suspects are measured, on the thread of live proofs.
`send` sends it with what was found, after a minute at the latest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from retuned.errors import RetunedError, TemporaryError
from retuned.node import windows
from retuned.node.live_proof import ProofRunner
from retuned.node.order_store import StoredOrder, bringer
from retuned.node.service_levels import levels_of
from retuned.ports import Stored
from retuned.stages.drift import DriftCode, DriftReport
from retuned.stages.gate import LiveProof
from retuned.stages.profile import WorkloadProfile
from retuned.stages.watch import attribution, proof
from retuned.stages.watch.attribution import (
    AttributionOutcome,
    AttributionState,
    Suspect,
    SuspectResult,
)
from retuned.standalone import kernels, live_proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import committed, say
from retuned.standalone.repeated_proof import (
    ATTRIBUTION,
    KEPT_PHASES,
    RepeatedProof,
    newest_state,
)

log = logging.getLogger(__name__)

TRYING = str(AttributionOutcome.TRYING)
_PILOT_PAIRS = 10


def holds(ctx: Context, window: Stored, alarm: DriftReport) -> str:
    """Begin the attribution of an alarm; return what it says meanwhile, empty without a suspect.

    Called in the transaction that writes the alarm.
    """
    now_s = ctx.clock.now().timestamp()
    found = attribution.suspects(_swaps(ctx), kernels=_kernels_of(ctx, window, alarm), now_s=now_s)
    if not found:
        return ""
    state = AttributionState(began_s=now_s, suspects=found)
    if not ctx.store.add(RecordKind.ATTRIBUTION, window.id, _body(state), phase=TRYING):
        return ""
    return attribution.finding(state)


def send(ctx: Context) -> None:
    """Send each alarm that has its answer, or that waited long enough for it."""
    for id in ctx.store.ids(RecordKind.DRIFT, phase=windows.HELD):
        state = _state(ctx.store.get(RecordKind.ATTRIBUTION, id))
        if state is None:
            windows.send_alarm(ctx, id, "whether a swap is the cause is unknown (unreadable)")
        elif attribution.must_send(state, now_s=ctx.clock.now().timestamp()):
            windows.send_alarm(ctx, id, attribution.finding(state))


def try_off(ctx: Context, stop: threading.Event) -> None:
    """Try the suspects of each alarm off, in turn, until there is an answer or `stop` is set."""
    for stored in ctx.store.list(RecordKind.ATTRIBUTION, phase=TRYING):
        state = _state(stored)
        if state is None:
            ctx.store.advance(
                RecordKind.ATTRIBUTION,
                stored.id,
                expect=TRYING,
                to=str(AttributionOutcome.UNKNOWN),
            )
            continue
        while (suspect := state.next_suspect) is not None and not stop.is_set():
            result = _tried(ctx, stored.id, state, suspect, stop)
            if result is None:
                break  # it continues later
            state = state.after(result)
            _keep(ctx, stored.id, state)


# --- suspects -------------------------------------------------------------------------------------


def _swaps(ctx: Context) -> list[Suspect]:
    """Return the swaps in force."""
    found = []
    for kept in committed(ctx.store).values():
        stored = ctx.store.get(RecordKind.ORDER, kept.order.id)
        if kept.order.artifact is None or stored is None:
            continue
        found.append(
            Suspect(
                proposal=bringer(ctx.store, kept.order).proposal,
                definition=kept.order.definition,
                artifact=kept.order.artifact,
                order=kept.order.id,
                since_s=stored.updated_at.timestamp(),
            )
        )
    return found


def _kernels_of(ctx: Context, window: Stored, alarm: DriftReport) -> frozenset[str]:
    """Return the definitions of the kernels that take another time."""
    shifted = {r.kernel for r in alarm.reasons if r.code is DriftCode.LATENCY_SHIFTED}
    live, found = kernels.geometries(ctx), set[str]()
    for stat in WorkloadProfile.model_validate(window.body["profile"]).stats:
        signature = stat.signature
        if signature.kernel not in shifted:
            continue
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        found.update((named[0],) if named is not None else ())
        found.update(share.workload.definition for share in live.shares_of(stat))
    return frozenset(found)


# --- one suspect ----------------------------------------------------------------------------------


def _tried(
    ctx: Context, alarm: str, state: AttributionState, suspect: Suspect, stop: threading.Event
) -> SuspectResult | None:
    """Try a swap off; None while that has no answer yet."""
    kept = committed(ctx.store).get(suspect.definition)
    if kept is None or kept.order.id != suspect.order:
        return SuspectResult(suspect=suspect, reason="not-in-force")
    record = RepeatedProof(
        ctx, kept.order, proposal=suspect.proposal, cause=ATTRIBUTION, number=alarm
    )
    try:
        rule = live_proof.rule_of(ctx, suspect.definition)
        untried = _untried(ctx, suspect)
    except (TemporaryError, OSError) as error:
        log.info("%s is not tried off now: %s", suspect.definition, error)
        if not attribution.is_too_late(state, now_s=ctx.clock.now().timestamp()):
            return None
        rule, untried = None, "no-answer"
    if rule is None or untried:
        return SuspectResult(suspect=suspect, reason=untried or "not-measured")
    _run(ctx, kept, record, rule, state=state, stop=stop)
    report = record.report()
    if report is None:
        return None
    withdraws = not proof.keeps(report, rule, kept=True)
    return SuspectResult(
        suspect=suspect, report=report, reason=str(report.reason), withdraws=withdraws
    )


def _untried(ctx: Context, suspect: Suspect) -> str:
    """Return why a swap cannot be tried off, a reason code; empty if it can.

    Raises
    ------
    TemporaryError
        If the server does not answer.
    """
    stored = ctx.store.get(RecordKind.PROPOSAL, suspect.proposal)
    if stored is None or stored.phase not in KEPT_PHASES:
        return "rollout-running"
    return live_proof.unavailable(ctx, suspect.proposal)


def _run(
    ctx: Context,
    kept: StoredOrder,
    record: RepeatedProof,
    rule: LiveProof,
    *,
    state: AttributionState,
    stop: threading.Event,
) -> None:
    assert ctx.live_steps is not None, "the swap can be tried off"
    left_s = state.began_s + attribution.TRY_S - ctx.clock.now().timestamp()
    settings = proof.settings_of(rule).model_copy(
        update={
            "long_blocks": 0,
            "pilot_pairs": _PILOT_PAIRS,
            "max_duration_s": max(left_s, attribution.HOLD_S),
        }
    )
    earlier = newest_state(ctx, record.proposal)
    ProofRunner(
        kept.order,
        rule,
        record=record,
        swapper=ctx.swapper,
        live=ctx.live_steps,
        clock=ctx.clock,
        first=lambda at_s: proof.begin_again(earlier, settings, at_s=at_s),
        kept=True,
        levels=levels_of(ctx.service_counts, rule),
    ).run(stop)


# --- what is kept ---------------------------------------------------------------------------------


def _body(state: AttributionState) -> Mapping[str, Any]:
    return state.model_dump(mode="json")


def _state(stored: Stored | None) -> AttributionState | None:
    """Return a stored attribution; None if it cannot be read, which is logged."""
    if stored is None:
        return None
    try:
        return AttributionState.model_validate(stored.body)
    except ValidationError as error:
        log.error("the attribution of alarm %s cannot be read: %s", stored.id, error)
        return None


def _keep(ctx: Context, id: str, state: AttributionState) -> None:
    """Store a result; an alarm that was sent meanwhile gets the answer afterwards."""
    outcome, result = state.outcome, state.results[-1]
    with ctx.store.transaction():
        if not ctx.store.advance(
            RecordKind.ATTRIBUTION, id, expect=TRYING, to=str(outcome), body=_body(state)
        ):
            return
        if result.report is None:
            say(
                ctx,
                result.suspect.proposal,
                "attribution-untried",
                reason=result.reason,
                slot=result.suspect.definition,
            )
    if outcome is AttributionOutcome.TRYING:
        return
    ctx.telemetry.count("retuned_alarm_attributions_total", outcome=str(outcome))
    try:
        windows.send_alarm(ctx, id, attribution.finding(state))
    except RetunedError as error:
        log.warning("alarm %s is sent later: %s", id, error)
