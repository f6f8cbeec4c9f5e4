"""From custom resources to what the pages show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retuned.errors import RetunedError
from retuned.stages.gate import DecisionKind
from retuned.web.records import (
    Act,
    CostBasis,
    Gate,
    Line,
    NodeRow,
    Person,
    ProposalDetails,
    ProposalStanding,
    Row,
)
from retuned_operator.crds import PolicyObject, SwapDecision, SwapProposal
from retuned_operator.crds.proposal_status import GateStatus, PodState, ProposalPhase, Step
from retuned_operator.kubectl.deciding import check_phase, doubts
from retuned_operator.kubectl.desk import KubernetesUser, full_name
from retuned_operator.review.deciding import KINDS

_SWAPS = frozenset(
    {
        ProposalPhase.CANARY,
        ProposalPhase.WATCHING,
        ProposalPhase.PROMOTED,
        ProposalPhase.ROLLING_BACK,
        ProposalPhase.ROLLBACK_FAILED,
        ProposalPhase.ROLLED_BACK,
    }
)
"""Phases whose beginning is a line of the page of swaps."""
_AGREED = (ProposalPhase.APPROVED, ProposalPhase.SCHEDULED)


def standing_of(phase: ProposalPhase) -> ProposalStanding:
    """Return where a proposal is, in the pages' words.

    Examples
    --------
    >>> standing_of(ProposalPhase.PAUSED), standing_of(ProposalPhase.PENDING)
    (<Standing.UNDER_WAY: 'under-way'>, <Standing.OPEN: 'open'>)
    """
    if phase in _AGREED:
        return ProposalStanding.AGREED
    if phase.is_before_swap:
        return ProposalStanding.OPEN
    if phase.is_under_way:
        return ProposalStanding.UNDER_WAY
    if phase.is_going_back:
        return ProposalStanding.GOING_BACK
    return ProposalStanding.IN_PLACE if phase is ProposalPhase.PROMOTED else ProposalStanding.ENDED


def row_of(found: SwapProposal) -> Row:
    """Return a proposal as a list shows it."""
    status = found.status
    steps = status.history
    return Row(
        key=full_name(found),
        name=full_name(found),
        proposal=found.stage_proposal(),
        phase=status.phase.value,
        standing=standing_of(status.phase),
        gate=gate_of(status.gate) if status.gate else None,
        updated_at=steps[-1].at if steps else found.metadata.creation_timestamp,
    )


def gate_of(status: GateStatus) -> Gate:
    """Return what the gate said, as the pages show it."""
    return Gate(
        state=status.state.value,
        reason=status.reason.value,
        sentence=status.sentence,
        policy=status.policy,
        policy_digest=status.policy_digest,
        name=status.name,
        required=status.required,
        received=status.received,
        missing=status.missing,
        missing_from=status.missing_from,
    )


def acts_in(found: SwapProposal) -> frozenset[Act]:
    """Return what can mean something now."""
    return frozenset(act for act in Act if _means_something(found, act))


def _means_something(found: SwapProposal, act: Act) -> bool:
    phase = found.status.phase
    if act in (Act.APPROVE, Act.BREAK_GLASS) and phase in (
        *_AGREED,
        ProposalPhase.PENDING,
        ProposalPhase.VALIDATING,
    ):
        return False
    try:
        check_phase(found, KINDS[act], back=act is Act.ROLLBACK)
    except RetunedError:
        return False
    return act is not Act.ABORT or phase is not ProposalPhase.PROMOTED


def doubts_of(
    found: SwapProposal, policy: PolicyObject | None, viewer: Person
) -> Mapping[Act, tuple[str, ...]]:
    """Return why the gate may not count what a viewer says."""
    if policy is None:
        return {}
    who = KubernetesUser(user=viewer.user, groups=viewer.groups)
    return {
        act: doubts(found, policy, who, kind=kind)
        for act, kind in (
            (Act.APPROVE, DecisionKind.APPROVE),
            (Act.BREAK_GLASS, DecisionKind.BREAK_GLASS),
        )
    }


def wants_comment(found: SwapProposal, policy: PolicyObject | None) -> bool:
    """Whether the policy's gate asks for a reason."""
    gate = found.status.gate
    if policy is None or gate is None:
        return False
    own = next((each for each in policy.spec.gates if each.name == gate.name), None)
    return own is not None and own.approvals.require_comment


def case_of(
    found: SwapProposal,
    decisions: Sequence[SwapDecision],
    policy: PolicyObject | None,
    *,
    viewer: Person,
    fleet: CostBasis,
) -> ProposalDetails:
    """Return what the objects alone say of a proposal; evidence and sources are the store's."""
    row = row_of(found)
    return ProposalDetails(
        row=row,
        acts=acts_in(found),
        doubts=doubts_of(found, policy, viewer),
        words=tuple(each.stage_decision(row.proposal.id) for each in decisions),
        places=tuple(_places(found)),
        lines=tuple(_lines(found)),
        fleet=fleet,
        commands=tuple(_commands(found)),
        comment_wanted=wants_comment(found, policy),
    )


def swap_lines(found: SwapProposal) -> Iterator[Line]:
    """Return when it was swapped and taken back, oldest first."""
    for step in found.status.history:
        if step.to in _SWAPS:
            yield _line(step, found)


def _lines(found: SwapProposal) -> Iterator[Line]:
    created = found.metadata.creation_timestamp
    if created is not None:
        yield Line(at=created, who=found.spec.requested_by, what="proposed")
    for step in found.status.history:
        yield _line(step, found)
    for look in found.status.analysis.last:
        words = ": ".join(filter(None, (look.reason, look.detail)))
        yield Line(at=look.at, who="retuned", what=f"look {look.outcome}", detail=words)


def _line(step: Step, found: SwapProposal) -> Line:
    return Line(
        at=step.at,
        who=step.by,
        what=f"{step.from_} to {step.to}",
        detail=step.reason,
        key=full_name(found),
        kernel=found.spec.kernel,
        target=found.target,
    )


def _places(found: SwapProposal) -> Iterator[NodeRow]:
    rollout = found.status.rollout
    for pod in rollout.pods if rollout is not None else ():
        told = "swap it in" if pod.wants is PodState.SWAP else "go back"
        yield NodeRow(name=pod.name, told=told, done=pod.done, since=pod.since, epoch=pod.epoch)


def _commands(found: SwapProposal) -> Iterator[str]:
    name, phase = full_name(found), found.status.phase
    if phase in (ProposalPhase.AWAITING_APPROVAL, ProposalPhase.PAUSED):
        yield f"kubectl retuned approve {name} --digest {found.spec.artifact.digest}"
    if phase.is_before_swap:
        yield f"kubectl retuned reject {name}"
    elif phase.is_under_way or phase is ProposalPhase.PROMOTED:
        yield f"kubectl retuned rollback {name}"
