"""Alarms about kernel times: swaps are tried off before an alarm names other causes.

`holds` keeps an alarm back while pairs of the suspects are measured, on the thread of live proofs.
`send` sends it with what was found, after a minute at the latest. One machine and the sidecar run
it. They differ in which swaps there are and who decides on them, which is behind `AlarmNode`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from pydantic import ValidationError

from retuned.errors import RetunedError, TemporaryError
from retuned.node import windows
from retuned.node.context import DRIFT, Observing
from retuned.node.live_proof import ProofRunner, ReportingRecord
from retuned.node.order_context import ORDER
from retuned.node.service_levels import levels_of
from retuned.ports import LiveSteps, ServiceCounts, Store, Stored
from retuned.stages.drift import DriftCode, DriftReport
from retuned.stages.gate import LiveProof
from retuned.stages.profile import SignatureStat, WorkloadProfile
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import attribution, proof
from retuned.stages.watch.attribution import (
    AttributionOutcome,
    AttributionState,
    Suspect,
    SuspectResult,
)

log = logging.getLogger(__name__)

ATTRIBUTION = "attribution"
"""Kind of the record of what was found of an alarm, by its window: trying -> an outcome."""
TRYING = str(AttributionOutcome.TRYING)


class AlarmPorts(Observing, Protocol):
    """Ports that trials need beside those of observing."""

    @property
    def live_steps(self) -> LiveSteps | None:
        """Steps of the server; None times none."""
        ...

    @property
    def service_counts(self) -> ServiceCounts | None:
        """What the server counts of its requests; None reads nothing."""
        ...


class AlarmNode(Protocol):
    """Swaps of a server as its node knows them."""

    def swaps(self) -> Sequence[Suspect]:
        """Return the swaps in force."""
        ...

    def definitions_of(self, stat: SignatureStat) -> Collection[str]:
        """Return the definitions of live kernels that may have made launches of a trace."""
        ...

    def order_of(self, suspect: Suspect) -> SwapOrder | None:
        """Return the order of a suspect; None if it is not in force any more."""
        ...

    def rule_of(self, suspect: Suspect) -> LiveProof | None:
        """Return the policy's rule; None where nothing is measured.

        Raises
        ------
        TemporaryError, OSError
            If it is not known now.
        """
        ...

    def unavailable(self, suspect: Suspect) -> str:
        """Return why a swap cannot be tried off, a reason code; empty if it can.

        Raises
        ------
        TemporaryError, OSError
            If that is not known now.
        """
        ...

    def trial(self, suspect: Suspect, order: SwapOrder, *, alarm: str) -> ReportingRecord:
        """Return the record of the pairs of a suspect for an alarm."""
        ...

    def earlier(self, suspect: Suspect) -> proof.ProofState | None:
        """Return the newest proof of a suspect with a fit; None without one."""
        ...

    def untried(self, result: SuspectResult) -> None:
        """Note that a suspect could not be tried; in the transaction that keeps the result."""
        ...

    def command(self, suspect: Suspect) -> str:
        """Return the command by which a person rolls a suspect back."""
        ...


def suspect_of(store: Store, order: SwapOrder, *, proposal: str) -> Suspect | None:
    """Return a swap in force as a suspect; None for an order without an artifact.

    Parameters
    ----------
    proposal
        Proposal that brought the artifact.
    """
    stored = store.get(ORDER, order.id)
    if order.artifact is None or stored is None:
        return None
    return Suspect(
        proposal=proposal,
        definition=order.definition,
        artifact=order.artifact,
        order=order.id,
        since_s=stored.updated_at.timestamp(),
    )


class Attribution:
    """Alarms of one server, and the suspects of each.

    Parameters
    ----------
    ctx
        Ports and settings.
    node
        The swaps.
    """

    def __init__(self, ctx: AlarmPorts, node: AlarmNode) -> None:
        self._ctx, self._node = ctx, node

    def holds(self, window: Stored, alarm: DriftReport) -> str:
        """Begin the attribution of an alarm; return its text meanwhile, empty without suspects.

        Called in the transaction that writes the alarm.
        """
        now_s = self._now_s()
        kernels = self._kernels_of(window, alarm)
        found = attribution.suspects(self._node.swaps(), kernels=kernels, now_s=now_s)
        if not found:
            return ""
        state = AttributionState(began_s=now_s, suspects=found)
        body = state.model_dump(mode="json")
        if not self._ctx.store.add(ATTRIBUTION, window.id, body, phase=TRYING):
            return ""
        return self._finding(state)

    def send(self) -> None:
        """Send each alarm that has its answer, or that waited long enough for it."""
        store = self._ctx.store
        for id in store.ids(DRIFT, phase=windows.HELD):
            state = _state(store.get(ATTRIBUTION, id))
            if state is None:
                unknown = "whether a swap is the cause is unknown (unreadable)"
                windows.send_alarm(self._ctx, id, unknown)
            elif attribution.must_send(state, now_s=self._now_s()):
                windows.send_alarm(self._ctx, id, self._finding(state))

    def try_off(self, stop: threading.Event) -> None:
        """Try the suspects of each alarm off, until there is an answer or `stop` is set."""
        store = self._ctx.store
        for stored in store.list(ATTRIBUTION, phase=TRYING):
            state = _state(stored)
            if state is None:
                unknown = str(AttributionOutcome.UNKNOWN)
                store.advance(ATTRIBUTION, stored.id, expect=TRYING, to=unknown)
                continue
            while (suspect := state.next_suspect) is not None and not stop.is_set():
                result = self._tried(stored.id, state, suspect, stop)
                if result is None:
                    break  # it continues later
                state = state.after(result)
                self._keep(stored.id, state)

    # --- one suspect ------------------------------------------------------------------------------

    def _kernels_of(self, window: Stored, alarm: DriftReport) -> frozenset[str]:
        """Return the definitions of the kernels that take another time."""
        shifted = {r.kernel for r in alarm.reasons if r.code is DriftCode.LATENCY_SHIFTED}
        found = set[str]()
        for stat in WorkloadProfile.model_validate(window.body["profile"]).stats:
            signature = stat.signature
            if signature.kernel not in shifted:
                continue
            catalog = self._ctx.catalog
            named = catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
            found.update((named[0],) if named is not None else ())
            found.update(self._node.definitions_of(stat))
        return frozenset(found)

    def _tried(
        self, alarm: str, state: AttributionState, suspect: Suspect, stop: threading.Event
    ) -> SuspectResult | None:
        """Try a swap off; None while that has no answer yet."""
        order = self._node.order_of(suspect)
        if order is None:
            return SuspectResult(suspect=suspect, reason="not-in-force")
        record = self._node.trial(suspect, order, alarm=alarm)
        try:
            rule = self._node.rule_of(suspect)
            untried = self._node.unavailable(suspect)
        except (TemporaryError, OSError) as error:
            log.info("%s is not tried off now: %s", suspect.definition, error)
            if not attribution.is_too_late(state, now_s=self._now_s()):
                return None
            rule, untried = None, "no-answer"
        if rule is None or untried:
            return SuspectResult(suspect=suspect, reason=untried or "not-measured")
        self._run(order, record, rule, suspect=suspect, state=state, stop=stop)
        report = record.report()
        if report is None:
            return None
        withdraws = not proof.keeps(report, rule, kept=True)
        return SuspectResult(
            suspect=suspect, report=report, reason=str(report.reason), withdraws=withdraws
        )

    def _run(
        self,
        order: SwapOrder,
        record: ReportingRecord,
        rule: LiveProof,
        *,
        suspect: Suspect,
        state: AttributionState,
        stop: threading.Event,
    ) -> None:
        ctx = self._ctx
        assert ctx.live_steps is not None, "the swap can be tried off"
        left_s = state.began_s + attribution.TRY_S - self._now_s()
        settings = attribution.trial_settings(rule, left_s=left_s)
        earlier = self._node.earlier(suspect)
        ProofRunner(
            order,
            rule,
            record=record,
            swapper=ctx.swapper,
            live=ctx.live_steps,
            clock=ctx.clock,
            first=lambda at_s: proof.begin_again(earlier, settings, at_s=at_s),
            kept=True,
            levels=levels_of(ctx.service_counts, rule),
        ).run(stop)

    # --- what is kept -----------------------------------------------------------------------------

    def _keep(self, id: str, state: AttributionState) -> None:
        """Store a result; an alarm that was sent meanwhile gets the answer afterwards."""
        outcome, result, store = state.outcome, state.results[-1], self._ctx.store
        body = state.model_dump(mode="json")
        with store.transaction():
            if not store.advance(ATTRIBUTION, id, expect=TRYING, to=str(outcome), body=body):
                return
            if result.report is None:
                self._node.untried(result)
        if outcome is AttributionOutcome.TRYING:
            return
        self._ctx.telemetry.count("retuned_alarm_attributions_total", outcome=str(outcome))
        try:
            windows.send_alarm(self._ctx, id, self._finding(state))
        except RetunedError as error:
            log.warning("alarm %s is sent later: %s", id, error)

    def _finding(self, state: AttributionState) -> str:
        cause = next((result.suspect for result in state.results if result.is_cause), None)
        return attribution.finding(state, command=self._node.command(cause) if cause else "")

    def _now_s(self) -> float:
        return self._ctx.clock.now().timestamp()


def _state(stored: Stored | None) -> AttributionState | None:
    """Return a stored attribution; None if it cannot be read, which is logged."""
    if stored is None:
        return None
    try:
        return AttributionState.model_validate(stored.body)
    except ValidationError as error:
        log.error("the attribution of alarm %s cannot be read: %s", stored.id, error)
        return None
