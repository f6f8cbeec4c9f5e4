"""Live proof on one machine: a swap is switched off and on in random pairs of blocks.

It runs on the thread of gate G7, in the phase `Proving`. The plan of a pair is written before its
first block, and the state after it, so that a daemon that ends goes on with the pairs that it has.
A daemon that stops before a required verdict leaves the swap off, and so does a verdict against it,
which the state machine follows by a rollback. A daemon that is killed in a block with the swap
leaves it on until another one runs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from typing import Any

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.control import MeasuredFact
from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.ports import LiveSteps, SlotState, Stored
from retuned.report.live_proof import sentence_of
from retuned.stages import watch
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import proof
from retuned.standalone import lessons, tuned_files
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import UNDER_WAY, committed, say
from retuned.store.envelopes import seal

log = logging.getLogger(__name__)

PROVING = "proving"
"""Phase of a record without a verdict."""
_NO_SAFE_POINT = "no-safe-point"
"""Reason code: one step took longer than the runtime waits for its end."""
_LOOK_S = 0.25
"""Between two looks at a block."""


def prove(ctx: Context, stop: threading.Event) -> None:
    """Prove the swap that waits for it, until there is a verdict or `stop` is set."""
    switch_on(ctx)
    for kept in committed(ctx.store).values():
        if stop.is_set() or ctx.live_steps is None:
            return
        rule = _rule(ctx, kept.order.definition)
        if rule is not None and _is_due(ctx, kept.order):
            _Proof(ctx, kept.order, rule, live=ctx.live_steps).run(stop)


def switch_on(ctx: Context) -> None:
    """Switch on swaps that a proof has left off and that are to serve.

    The server did not answer when their verdict came, or the policy asks for no proof any more.
    """
    wanted = {
        (stored.body["definition"], stored.body["artifact"])
        for stored in ctx.store.list(RecordKind.LIVE_PROOF)
        if _is_kept(ctx, stored)
    }
    if not wanted:
        return
    try:
        for slot in ctx.swapper.slots():
            if (slot.definition, slot.active) in wanted and slot.bypassed:
                ctx.swapper.bypass(slot.definition, on=False)
    except RetunedError as error:
        log.warning("swaps could not be switched on again: %s", error)


def _is_kept(ctx: Context, stored: Stored) -> bool:
    """Whether a swap serves whatever its proof has or has not shown."""
    proposal = ctx.store.get(RecordKind.PROPOSAL, stored.id)
    if proposal is None or proposal.phase not in (*UNDER_WAY, str(ProposalPhase.PROMOTED)):
        return False
    try:
        rule = _rule(ctx, str(stored.body["definition"]))
    except (RetunedError, OSError):
        return False
    if rule is None or rule.mode is LiveProofMode.OBSERVE:
        return True
    report = report_of(ctx, stored.id)
    return report is not None and _keeps(report, rule)


def _keeps(report: proof.ProofReport, rule: LiveProof) -> bool:
    return proof.consequence(report, _settings(rule)) is proof.Consequence.KEEP


def follows(ctx: Context, proposal: Proposal) -> MeasuredFact:
    """Return what the live proof means for a swap under way."""
    try:
        rule = _rule(ctx, proposal.definition)
    except (RetunedError, OSError) as error:
        log.warning("%s waits for a policy that can be read: %s", proposal.definition, error)
        return MeasuredFact(consequence=watch.Consequence.WAIT)
    if rule is None:
        return MeasuredFact()
    report = report_of(ctx, proposal.id)
    if report is None and _cannot_begin(ctx, proposal.id):
        report = _not_switchable()
    if report is None:
        return MeasuredFact(consequence=watch.Consequence.WAIT)
    keeps = _keeps(report, rule)
    return MeasuredFact(
        consequence=watch.Consequence.KEEP if keeps else watch.Consequence.REVERT,
        reason=f"live-proof-{report.reason}",
        detail=sentence_of(report),
        blames=report.verdict is proof.Verdict.HARMS,
    )


def _cannot_begin(ctx: Context, proposal: str) -> bool:
    """Whether no proof can begin; False while one runs, or while the server does not answer."""
    if ctx.store.get(RecordKind.LIVE_PROOF, proposal) is not None:
        return False
    try:
        return bool(unavailable(ctx, proposal))
    except TemporaryError:
        return False


def unavailable(ctx: Context, proposal: str) -> str:
    """Return why a swap cannot be proven here, a reason code; empty if it can.

    Raises
    ------
    TemporaryError
        If the server does not answer, or has not begun its first step.
    """
    if ctx.live_steps is None or tuned_files.is_fixed(ctx, proposal):
        return "not-switchable"
    return ctx.live_steps.unavailable()


def report_of(ctx: Context, proposal: str) -> proof.ProofReport | None:
    """Return the verdict on a swap; None without one."""
    record = ctx.store.get(RecordKind.LIVE_PROOF, proposal)
    if record is None or record.phase == PROVING:
        return None
    return proof.ProofReport.model_validate(record.body["report"])


def _rule(ctx: Context, definition: str) -> LiveProof | None:
    """Return what the policy requires; None where nothing is measured."""
    limits = ctx.policy_limits(definition)
    rule = LiveProof() if limits is None else limits.live_proof
    return None if rule.mode is LiveProofMode.OFF else rule


def _settings(rule: LiveProof) -> proof.ProofSettings:
    return proof.ProofSettings(
        mode=rule.mode.value,
        min_effect=rule.min_effect,
        max_harm=rule.max_harm,
        max_duration_s=rule.max_duration.total_seconds(),
        long_blocks=rule.long_blocks,
        on_no_effect=rule.on_no_effect.value,
        on_too_little_traffic=rule.on_too_little_traffic.value,
        retries=0,
    )


def _not_switchable() -> proof.ProofReport:
    return proof.ProofReport(
        verdict=proof.Verdict.NOT_CONCLUDED, reason=proof.ProofReason.NOT_SWITCHABLE
    )


def _is_due(ctx: Context, order: SwapOrder) -> bool:
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if order.kind is not SwapKind.SWAP or stored is None:
        return False
    record = ctx.store.get(RecordKind.LIVE_PROOF, order.proposal)
    waits = stored.phase == str(ProposalPhase.PROVING)
    if not waits or (record is not None and record.phase != PROVING):
        return False
    try:
        return not unavailable(ctx, order.proposal)
    except TemporaryError as error:
        log.info("%s is not proven now: %s", order.definition, error)
        return record is not None  # its time goes on


class _Interrupted(Exception):
    """The order is no longer in force, or the server is another one."""


class _Waits(Exception):
    """The proof continues later."""


class _Proof:
    """The proof of one order."""

    def __init__(self, ctx: Context, order: SwapOrder, rule: LiveProof, *, live: LiveSteps) -> None:
        self._ctx, self._order, self._rule, self._live = ctx, order, rule, live
        self._steps: dict[str, list[proof.StepRecord]] = {}
        """By label of their block."""

    def run(self, stop: threading.Event) -> None:
        """Measure pairs until there is a verdict, or `stop` is set."""
        state = self._begun()
        try:
            self._live.begin()
            while not state.done and not stop.is_set():
                state = self._keep(proof.next_pair(state, secrets.SystemRandom()))
                state = self._keep(self._measured(state, stop))
        except (_Interrupted, CandidateError) as error:
            if isinstance(error, CandidateError) and error.reason == _NO_SAFE_POINT:
                log.info("%s: the live proof waits: %s", self._order.definition, error)
            else:
                log.info("%s: the live proof ends: %s", self._order.definition, error)
                state = proof.step(state, proof.Interrupted(at_s=self._at_s()))
        except (TemporaryError, _Waits) as error:
            log.info("%s: the live proof waits: %s", self._order.definition, error)
        finally:
            self._left(state)
        if state.done:
            self._finish(state)

    # --- one pair ---------------------------------------------------------------------------------

    def _measured(self, state: proof.ProofState, stop: threading.Event) -> proof.ProofState:
        """Run the planned pair; return the state after it."""
        plan = state.plan
        assert plan is not None, "it was just planned"
        self._steps.clear()
        labels = [f"{plan.number}-{at}-{arm}" for at, arm in enumerate(plan.runs)]
        for label, arm in zip(labels, plan.runs, strict=True):
            if not self._block(plan, arm, label=label, stop=stop):
                return proof.step(state, proof.PairAbandoned(plan.number, at_s=self._at_s()))
        self._live.wait(_LOOK_S / 5)  # the device ends what the host has launched
        self._read()
        blocks = [_block_of(self._steps.get(label, [])) for label in labels]
        event = proof.PairMeasured(plan.number, blocks[0], blocks[1], at_s=self._at_s())
        return proof.step(state, event)

    def _block(
        self, plan: proof.PairPlan, arm: proof.Arm, *, label: str, stop: threading.Event
    ) -> bool:
        """Run one block; return whether it ran to its end with the right arm."""
        off = arm is proof.Arm.OFF
        self._slot()  # a switch names a kernel, not an order
        self._ctx.swapper.bypass(self._order.definition, on=off, arm=label)
        began_s = self._live.now_s()
        while not stop.is_set():
            self._live.wait(_LOOK_S)
            self._read()
            count = len(self._steps.get(label, ()))
            elapsed_s = self._live.now_s() - began_s
            if proof.block_is_over(plan, elapsed_s=elapsed_s, steps=count):
                return self._stands(off=off)
        return False

    def _read(self) -> None:
        for label, step in self._live.read():
            self._steps.setdefault(label, []).append(step)

    def _stands(self, *, off: bool) -> bool:
        """Whether the block's arm is still in force; raises where the order is not."""
        stored = self._ctx.store.get(RecordKind.PROPOSAL, self._order.proposal)
        if stored is None or stored.phase not in UNDER_WAY:
            raise _Interrupted("the rollout has ended")
        if stored.phase != str(ProposalPhase.PROVING):
            raise _Waits(f"the proposal is {stored.phase}")
        return self._slot().bypassed is off

    def _slot(self) -> SlotState:
        """Return the slot, which has this very order in force; raises if it has not."""
        order = self._order
        for slot in self._ctx.swapper.slots():
            if slot.definition == order.definition:
                if (slot.active, slot.epoch) != (order.artifact, order.epoch) or slot.tripped:
                    raise _Interrupted("the order is no longer in force")
                return slot
        raise _Interrupted("the slot is gone")

    # --- what is kept -----------------------------------------------------------------------------

    def _begun(self) -> proof.ProofState:
        """Return the state of this order; a pair that a daemon left is abandoned."""
        record = self._ctx.store.get(RecordKind.LIVE_PROOF, self._order.proposal)
        state = self._known(record)
        if state is not None:
            if state.plan is not None:
                event = proof.PairAbandoned(state.plan.number, at_s=self._at_s())
                state = proof.step(state, event)
            return self._keep(proof.step(state, proof.Tick(at_s=self._at_s())))
        state = proof.begin(_settings(self._rule), at_s=self._at_s())
        if not self._ctx.store.add(
            RecordKind.LIVE_PROOF, self._order.proposal, self._body(state), phase=PROVING
        ):
            self._keep(state)
        return state

    def _known(self, record: Stored | None) -> proof.ProofState | None:
        """Return the state that a daemon left of this order; None if there is none."""
        if record is None or record.body["order"] != self._order.id:
            return None
        try:
            return proof.ProofState.model_validate(record.body["state"])
        except ValidationError as error:
            log.warning("%s: the live proof begins again: %s", self._order.definition, error)
            return None

    def _keep(self, state: proof.ProofState) -> proof.ProofState:
        self._ctx.store.advance(
            RecordKind.LIVE_PROOF,
            self._order.proposal,
            expect=PROVING,
            to=PROVING,
            body=self._body(state),
        )
        return state

    def _body(self, state: proof.ProofState) -> dict[str, Any]:
        return {
            "order": self._order.id,
            "definition": self._order.definition,
            "artifact": self._order.artifact,
            "state": state.model_dump(mode="json"),
        }

    def _at_s(self) -> float:
        return self._ctx.clock.now().timestamp()

    def _left(self, state: proof.ProofState) -> None:
        """Leave the slot as the verdict, or the lack of one, asks for."""
        ended = state.report if state.done else None
        on = self._rule.mode is LiveProofMode.OBSERVE
        on = on or (ended is not None and _keeps(ended, self._rule))
        try:
            self._live.end()
            self._slot()
            self._ctx.swapper.bypass(self._order.definition, on=not on)
        except _Interrupted as error:
            log.info("%s is not switched: %s", self._order.definition, error)
        except RetunedError as error:
            log.warning("%s could not be switched: %s", self._order.definition, error)

    def _finish(self, state: proof.ProofState) -> None:
        """Keep the verdict with its signed evidence."""
        ctx, order, report = self._ctx, self._order, state.report
        assert report is not None, "a proof that is done has one"
        body = self._body(state) | {"report": report.model_dump(mode="json")}
        payload = json.dumps({"gate": "live-proof", "proposal": order.proposal, **body})
        body["evidence"] = ctx.store.put_blob(seal(payload.encode(), notary=ctx.notary))
        verdict, sentence = str(report.verdict), sentence_of(report)
        with ctx.store.transaction():
            if not ctx.store.advance(
                RecordKind.LIVE_PROOF, order.proposal, expect=PROVING, to=verdict, body=body
            ):
                return
            say(
                ctx,
                order.proposal,
                f"live-proof-{verdict}",
                reason=str(report.reason),
                detail=sentence,
                evidence=body["evidence"],
                slot=order.definition,
            )
            lessons.learn(ctx, order, report, pace=state.pace)
        ctx.telemetry.count(
            "retuned_live_proof_verdicts_total", verdict=verdict, reason=str(report.reason)
        )
        log.info("%s live proof: %s", order.definition, sentence)


def _block_of(steps: list[proof.StepRecord]) -> proof.MeasuredBlock:
    if not steps:
        return proof.MeasuredBlock(steps=proof.columns_of(()), began_s=0.0, ended_s=0.0)
    first = steps[0]
    return proof.MeasuredBlock(
        steps=proof.columns_of(steps),
        began_s=first.ended_s - (first.period_s or 0.0),
        ended_s=steps[-1].ended_s,
    )
