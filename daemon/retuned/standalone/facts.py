"""Facts of one machine, as the state machine reads them: a target with one node.

`observe` reads everything once; `facts_of` selects what one proposal's step needs. An input that
cannot be read is None, which stops progress and never a rollback.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import PrivateAttr, ValidationError

from retuned.api.decision import SwapDecision, SwapDecisionSpec
from retuned.api.proposal import (
    PodState,
    ProposalPhase,
    SwapProposal,
    SwapProposalStatus,
    proposal_spec,
)
from retuned.api.target import (
    Gpu,
    TargetMode,
    TuningTarget,
    TuningTargetSpec,
    TuningTargetStatus,
    Vendor,
)
from retuned.api.values import API_VERSION, Abort, ObjectMeta, UidRef
from retuned.contract import Digest
from retuned.control import live_proofs
from retuned.control.facts import HeldFact, MeasuredFact, PodFact, PolicyFact, RolloutFacts
from retuned.errors import RetunedError, TemporaryError
from retuned.node import order_store
from retuned.ports import SlotState, Stored
from retuned.stages import gate
from retuned.stages.gate import EndToEndRule, LiveProofMode
from retuned.stages.gate.policy import Selector
from retuned.stages.proposal import Proposal
from retuned.standalone import evidence as proving
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.evidence import measured_in
from retuned.standalone.hypotheses import live_baseline
from retuned.standalone.node import LocalNode
from retuned.standalone.proofs import end_to_end, live_proof, repeated_proof, server_pace
from retuned.standalone.records import BEFORE_SWAP, GOING_BACK, UNDER_WAY, understood
from retuned.standalone.tunables import records as tunable_records
from retuned.standalone.tunables import tuned_files
from retuned.store.approvals import Approvals

log = logging.getLogger(__name__)

NODE = "server"
"""Name and uid of the one node."""
TARGET = "status"
"""Id of the record of the target."""
_KEPT = 64
"""Promoted and rolled back proposals that are read, the newest."""
_CHECKED_S = 30.0
"""How long a verification of evidence counts before a swap; it is verified again at its load."""
_GENERATION = 1
"""Generation of policy files: decisions name a policy by its digest."""
_NAME = re.compile(r"[^a-z0-9]+")
T = TypeVar("T")


class LocalProposal(SwapProposal):
    """A proposal of one machine as the state machine reads it, around the stage's record."""

    _record: Proposal = PrivateAttr()

    @property
    def target(self) -> str:
        """Target as orders and freezes name it."""
        return self._record.target

    @property
    def id(self) -> str:
        """Id of the record."""
        return self._record.id

    def stage_proposal(self) -> Proposal:
        """Return the record itself."""
        return self._record


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that was observed for one round of steps."""

    target: TuningTarget
    proposals: tuple[LocalProposal, ...]
    """Open, under way or rolling back, and the newest promoted or rolled back, oldest first."""
    policies: tuple[PolicyFact, ...] | None
    freezes: tuple[gate.TuningFreeze, ...] | None
    slots: Mapping[str, SlotState] | None
    """State of the slots; None if the server does not answer."""
    serves: bool
    """Whether a process of the server runs. One that has ended runs nothing."""


@dataclass(slots=True)
class FactMemory:
    """What is read seldom because it is expensive; a restart finds it again."""

    resources: dict[str, tuple[Any, Any, LocalProposal]] = field(default_factory=dict)
    """By proposal: body and status as they were read, and the resource."""
    evidence: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    """By proposal: when its evidence was verified, monotonic seconds, and its fault."""


def name_of(proposal: str) -> str:
    """Return a proposal's id as the name of an object.

    Examples
    --------
    >>> name_of("sha256:" + "ab" * 32)[:8], name_of("again")
    ('abababab', 'again')
    """
    return _NAME.sub("-", proposal.removeprefix("sha256:").lower()).strip("-")[:60] or "proposal"


def observe(ctx: Context, memory: FactMemory) -> Machine:
    """Read the store, the policies and the server once; an idle server is left alone."""
    proposals = _proposals(ctx, memory)
    is_idle = not proposals and not order_store.latest(ctx.store)
    slots = None if is_idle else _slots(ctx)
    return Machine(
        target=target_of(ctx),
        proposals=proposals,
        policies=_readable(ctx, "policies", lambda: _policies(ctx)),
        freezes=freezes_of(ctx),
        slots=slots,
        serves=slots is not None or (not is_idle and bool(ctx.server_processes())),
    )


def freezes_of(ctx: Context) -> tuple[gate.TuningFreeze, ...] | None:
    """Return the active freezes; None while one cannot be read."""
    return _readable(ctx, "freezes", lambda: Approvals(ctx.store).freezes(now=ctx.clock.now()))


def target_of(ctx: Context) -> TuningTarget:
    """Return the server of this machine as a target."""
    name = name_of(ctx.settings.target)
    return TuningTarget(
        api_version=API_VERSION,
        kind="TuningTarget",
        metadata=ObjectMeta(name=name, labels=dict(ctx.labels)),
        spec=TuningTargetSpec(
            selector=Selector(),
            container=NODE,
            gpu=Gpu(vendor=Vendor.CPU, model=ctx.gpu_model),
            mode=TargetMode.SWAP,
        ),
        status=target_status(ctx).model_copy(update={"environment": ctx.environment}),
    )


def quarantined(ctx: Context) -> frozenset[Digest]:
    """Return the artifacts in quarantine."""
    now = ctx.clock.now()
    return frozenset(each.digest for each in target_status(ctx).quarantine if now < each.until)


def target_status(ctx: Context) -> TuningTargetStatus:
    """Return what every node of the target must run, and what is quarantined."""
    stored = ctx.store.get(RecordKind.TARGET, TARGET)
    if stored is None:
        return TuningTargetStatus()
    found = understood(ctx, stored, TuningTargetStatus)
    return found if found is not None else TuningTargetStatus()


def facts_of(
    ctx: Context, node: LocalNode, memory: FactMemory, *, machine: Machine, resource: LocalProposal
) -> RolloutFacts:
    """Return what a step of one proposal reads."""
    record = resource.stage_proposal()
    checked, fault = _evidence(ctx, memory, resource)
    return RolloutFacts(
        target=_measured_target(ctx, machine.target, record),
        pods=pods_of(node, machine, resource),
        policies=machine.policies,
        decisions=_readable(
            ctx,
            f"decisions on {record.id}",
            lambda: tuple(_decision(resource, each) for each in _decided(ctx, record.id)),
        ),
        freezes=machine.freezes,
        others=tuple(each for each in machine.proposals if each.id != record.id),
        live_baseline=_readable(
            ctx, "the incumbent", lambda: live_baseline(ctx, record.definition)
        ),
        evidence_checked=checked,
        evidence_fault=fault,
        end_to_end=_end_to_end(ctx, resource),
        live_proof=_live_proof(ctx, resource),
        repeated_proof=_repeated_proof(ctx, resource),
        unavailable=_unavailable(ctx, record),
    )


def _measured_target(ctx: Context, target: TuningTarget, record: Proposal) -> TuningTarget:
    """Return the target with the environment that evidence on this kernel must come from."""
    environment = tunable_records.environment_of(ctx, record.definition)
    if target.status.environment == environment:
        return target
    status = target.status.model_copy(update={"environment": environment})
    return target.model_copy(update={"status": status})


def pods_of(node: LocalNode, machine: Machine, resource: LocalProposal) -> tuple[PodFact, ...]:
    """Return the one node; none while no process of the server runs."""
    if not machine.serves:
        return ()
    record = resource.stage_proposal()
    if machine.slots is None:
        return (_presumed(resource),)
    held = _held(node, record)
    slot = machine.slots.get(record.definition)
    if slot is None:  # the slot of a live kernel appears with its first variant
        return (PodFact(name=NODE, uid=NODE, ready=True, held=held),)
    concerned, report = order_store.judged(node, record.definition)
    mine = concerned in ("", record.id)
    return (
        PodFact(
            name=NODE,
            uid=NODE,
            ready=True,
            active=slot.active,
            epoch=slot.epoch,
            newest_epoch=max(slot.newest_epoch, slot.epoch),
            tripped=slot.tripped if mine else "",
            report=report if concerned == record.id else None,
            held=held,
        ),
    )


def resource_of(
    stored: Stored, record: Proposal, status: SwapProposalStatus, *, gpu_model: str
) -> LocalProposal:
    """Return a proposal's record and status as the state machine reads them.

    Raises
    ------
    ValueError
        If the record lacks evidence or an environment.
    """
    name = name_of(record.id)
    spec = proposal_spec(
        record, target=name_of(record.target), gpu_model=gpu_model, experiment=name
    )
    made = LocalProposal(
        api_version=API_VERSION,
        kind="SwapProposal",
        metadata=ObjectMeta(
            name=name, uid=name, generation=1, creation_timestamp=record.created_at
        ),
        spec=spec,
        status=status,
    )
    made._record = record
    return made


def _proposals(ctx: Context, memory: FactMemory) -> tuple[LocalProposal, ...]:
    stored = [
        each
        for phase in (*BEFORE_SWAP, *UNDER_WAY, *GOING_BACK)
        for each in ctx.store.list(RecordKind.PROPOSAL, phase=phase)
    ]
    for phase in (ProposalPhase.PROMOTED, ProposalPhase.ROLLED_BACK):
        stored += ctx.store.page(RecordKind.PROPOSAL, phases=(str(phase),), limit=_KEPT)
    asked = {
        str(each.body.get("target")): str(each.body.get("reason", ""))
        for each in ctx.store.list(RecordKind.REQUEST, phase="new")
    }
    found = []
    for each in stored:
        resource = _resource(ctx, memory, each)
        if resource is not None:
            found.append(_aborted(resource, asked))
    for known in (memory.resources, memory.evidence):
        for id in known.keys() - {each.id for each in stored}:
            del known[id]
    return tuple(sorted(found, key=lambda each: (each.stage_proposal().created_at, each.id)))


def _resource(ctx: Context, memory: FactMemory, stored: Stored) -> LocalProposal | None:
    status = ctx.store.get(RecordKind.STATUS, stored.id)
    known = memory.resources.get(stored.id)
    body = None if status is None else status.body
    if known is not None and (known[0], known[1]) == (stored.body, body):
        return known[2]
    record = understood(ctx, stored, Proposal)
    if record is None:
        return None
    if record.environment is None:  # an early version kept it in the experiment alone
        record = record.model_copy(update={"environment": measured_in(ctx, record)})
    try:
        resource = resource_of(stored, record, _status(stored, body), gpu_model=ctx.gpu_model)
    except ValidationError as error:
        log.error("the status of proposal %s cannot be read: %s", stored.id, error)
        return None
    except ValueError as error:  # written by an early version
        log.error("proposal %s is left out: %s", stored.id, error)
        return None
    memory.resources[stored.id] = (stored.body, body, resource)
    return resource


def _status(stored: Stored, body: Mapping[str, Any] | None) -> SwapProposalStatus:
    if body is None:
        return SwapProposalStatus(phase=ProposalPhase(stored.phase))
    return SwapProposalStatus.model_validate(body)


def _aborted(resource: LocalProposal, asked: Mapping[str, str]) -> LocalProposal:
    """Return a proposal with the abort that a person requested, if any."""
    if resource.id not in asked:
        return resource
    abort = Abort(requested=True, reason=asked[resource.id][:2000])
    spec = resource.spec.model_copy(update={"abort": abort})
    return resource.model_copy(update={"spec": spec})


def _policies(ctx: Context) -> tuple[PolicyFact, ...]:
    return tuple(PolicyFact(policy=each, generation=_GENERATION) for each in ctx.policies())


def _decided(ctx: Context, proposal: str) -> Sequence[gate.SwapDecision]:
    return Approvals(ctx.store).decisions(proposal)


def _decision(resource: LocalProposal, decision: gate.SwapDecision) -> SwapDecision:
    """Return a decision of this machine as the custom resource that the gate counts."""
    name = name_of(decision.id)
    return SwapDecision(
        api_version=API_VERSION,
        kind="SwapDecision",
        metadata=ObjectMeta(name=name, uid=name, creation_timestamp=decision.at),
        spec=SwapDecisionSpec(
            proposal_ref=UidRef(name=resource.metadata.name, uid=resource.metadata.uid),
            digest=decision.digest,
            decision=decision.decision,
            user=decision.user,
            groups=decision.groups,
            comment=decision.comment,
            channel=decision.channel,
            policy_generation=_GENERATION,
            policy_digest=decision.policy_digest,
        ),
    )


def _slots(ctx: Context) -> Mapping[str, SlotState] | None:
    try:
        return {slot.definition: slot for slot in ctx.swapper.slots()}
    except TemporaryError as error:
        log.info("the server does not answer: %s", error)
        return None


def _presumed(resource: LocalProposal) -> PodFact:
    """Return a server that runs and does not answer, as the status has it last."""
    silent = PodFact(name=NODE, uid=NODE, ready=False)
    rollout = resource.status.rollout
    told = next((each for each in rollout.pods if each.uid == NODE), None) if rollout else None
    if rollout is None or told is None or not told.done:
        return silent
    previous = rollout.previous.digest if rollout.previous else None
    active = resource.spec.artifact.digest if told.wants is PodState.SWAP else previous
    return replace(silent, active=active, epoch=told.epoch, newest_epoch=told.epoch)


def _held(node: LocalNode, record: Proposal) -> HeldFact | None:
    for each in order_store.held_orders(node):
        if (each.definition, each.proposal) == (record.definition, record.id):
            return HeldFact(
                epoch=each.epoch, final=each.final, reason=each.reason, detail=each.detail
            )
    return None


def _evidence(ctx: Context, memory: FactMemory, resource: LocalProposal) -> tuple[bool, str | None]:
    """Return whether evidence was verified, and its fault; only before a swap."""
    if not resource.status.phase.is_before_swap:
        return True, None
    now_s, known = ctx.clock.monotonic_s(), memory.evidence.get(resource.id)
    if known is not None and now_s - known[0] < _CHECKED_S:
        return True, known[1]
    try:
        _, doubt = proving.believed(ctx, resource.stage_proposal())
    except TemporaryError as error:
        log.warning("evidence of %s cannot be verified now: %s", resource.id, error)
        return False, None
    fault = None if doubt is None else str(doubt.fault)
    if doubt is not None:
        log.error("%s is not swapped: %s", resource.spec.kernel, doubt.detail)
    memory.evidence[resource.id] = (now_s, fault)
    return True, fault


def _end_to_end(ctx: Context, resource: LocalProposal) -> MeasuredFact:
    """Return what gate G7 means for a swap that is under way."""
    if not resource.status.phase.is_under_way:
        return MeasuredFact()
    then, reason, detail = end_to_end.follows(ctx, resource.stage_proposal())
    return MeasuredFact(consequence=then, reason=reason, detail=detail)


def _live_proof(ctx: Context, resource: LocalProposal) -> MeasuredFact:
    """Return what the live proof means for a swap that is under way."""
    if not resource.status.phase.is_under_way:
        return MeasuredFact()
    return live_proof.follows(ctx, resource.stage_proposal())


def _repeated_proof(ctx: Context, resource: LocalProposal) -> MeasuredFact:
    """Return what pairs of a swap that was kept mean for it."""
    if resource.status.phase not in (ProposalPhase.WATCHING, ProposalPhase.PROMOTED):
        return MeasuredFact()
    return repeated_proof.follows(ctx, resource.stage_proposal())


def _unavailable(ctx: Context, record: Proposal) -> str:
    """Return what the policy requires and this machine cannot do; empty if there is nothing.

    All launches use a row of a tuned file or a table, or none does: such a change has no canary. A
    file cannot be switched off and on for a measurement.
    """
    try:
        limits = ctx.policy_limits(record.definition)
    except (RetunedError, OSError):
        return ""  # nothing starts without a readable policy
    if limits is None:
        return ""
    measurable = ctx.end_to_end is not None and not tuned_files.is_fixed(ctx, record.id)
    if limits.end_to_end is EndToEndRule.REQUIRED and not measurable:
        return "end-to-end-unavailable"
    if limits.live_proof.mode is LiveProofMode.REQUIRED:
        code = live_proofs.held(limits.live_proof, _unprovable(ctx, record.id))
        if code or _is_hopeless(ctx, record.id):
            return code or "host-bound"
    if tuned_files.is_change(ctx, record.id) and (
        limits.canary.steps or limits.canary.shadow_first
    ):
        return "canary-not-possible"
    return ""


def _is_hopeless(ctx: Context, proposal: str) -> bool:
    """Whether the server cannot gain from a swap; an unknown prediction holds nothing back."""
    found = server_pace.forecast_of(ctx.store, proposal)
    return found is not None and found.host_bound


def _unprovable(ctx: Context, proposal: str) -> str:
    """Return why a swap cannot be proven now, a reason code; empty if it can."""
    try:
        return live_proof.unavailable(ctx, proposal)
    except TemporaryError:
        return "no-answer"  # nothing starts on a server that does not answer


def _readable(ctx: Context, what: str, read: Callable[[], T]) -> T | None:
    """Return what is read, or None if it cannot be read now; that is logged and counted."""
    try:
        return read()
    except (RetunedError, OSError) as error:
        log.error("%s cannot be read: %s", what, error)
        expected = str(isinstance(error, RetunedError)).lower()
        ctx.telemetry.count("retuned_step_errors_total", step="reconcile", expected=expected)
        return None
