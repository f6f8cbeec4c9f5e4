"""What a source hands to the pages: records of the stages, and where each stands. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

from retuned.api.proposal import ProposalPhase
from retuned.contract import Digest, Solution
from retuned.control.decisions import AGREES, check_phase
from retuned.errors import Refused
from retuned.stages.drift import DriftReport
from retuned.stages.gate import (
    DecisionKind,
    GateDecision,
    SwapDecision,
    TuningFreeze,
    explain,
)
from retuned.stages.profile import WorkloadProfile
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import Doubt, EvidenceDocument
from retuned.stages.watch import EndToEndReport, WatchSample
from retuned.stages.watch.proof import Forecast, ProofState, StepAccount

T = TypeVar("T")


class Act(StrEnum):
    """What a person may say on the page."""

    APPROVE = "approve"
    REJECT = "reject"
    ABORT = "abort"
    ROLLBACK = "rollback"
    BREAK_GLASS = "break-glass"


class ReviewPhase(StrEnum):
    """Where a proposal is, in words that one machine and a cluster share."""

    OPEN = "open"
    """A policy, or people, have to agree."""
    AGREED = "agreed"
    """Agreed; nothing is swapped yet."""
    UNDER_WAY = "under-way"
    """Some server has it, and it is not proven in all of them."""
    IN_PLACE = "in-place"
    """Kept."""
    GOING_BACK = "going-back"
    """Servers roll back to the kernels that ran before."""
    ENDED = "ended"
    """Nothing follows."""


def review_phase_of(phase: ProposalPhase) -> ReviewPhase:
    """Return the phase of a proposal as the pages group it.

    Examples
    --------
    >>> review_phase_of(ProposalPhase.PAUSED), review_phase_of(ProposalPhase.PENDING)
    (<ReviewPhase.UNDER_WAY: 'under-way'>, <ReviewPhase.OPEN: 'open'>)
    """
    if phase in (ProposalPhase.APPROVED, ProposalPhase.SCHEDULED):
        return ReviewPhase.AGREED
    if phase.is_before_swap:
        return ReviewPhase.OPEN
    if phase.is_under_way:
        return ReviewPhase.UNDER_WAY
    if phase.is_going_back:
        return ReviewPhase.GOING_BACK
    return ReviewPhase.IN_PLACE if phase is ProposalPhase.PROMOTED else ReviewPhase.ENDED


KINDS = {
    Act.APPROVE: DecisionKind.APPROVE,
    Act.REJECT: DecisionKind.REJECT,
    Act.ABORT: DecisionKind.ABORT,
    Act.ROLLBACK: DecisionKind.ABORT,
    Act.BREAK_GLASS: DecisionKind.BREAK_GLASS,
}
"""The decision that each act gives; a rollback is the abort of a swap."""
_UNASKED = frozenset(
    {
        ProposalPhase.PENDING,
        ProposalPhase.VALIDATING,
        ProposalPhase.APPROVED,
        ProposalPhase.SCHEDULED,
    }
)
"""Phases before a swap in which no approval is missing."""


def acts_in(phase: ProposalPhase) -> frozenset[Act]:
    """Return the acts that have an effect in a phase.

    Examples
    --------
    >>> sorted(acts_in(ProposalPhase.PROMOTED)), sorted(acts_in(ProposalPhase.REJECTED))
    ([<Act.ROLLBACK: 'rollback'>], [])
    """
    return frozenset(act for act in Act if _has_effect(phase, act))


def _has_effect(phase: ProposalPhase, act: Act) -> bool:
    if KINDS[act] in AGREES and phase in _UNASKED:
        return False
    try:
        check_phase(phase, KINDS[act], name="", program="", back=act is Act.ROLLBACK)
    except Refused:
        return False
    return act is not Act.ABORT or phase is not ProposalPhase.PROMOTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who reads, or decides."""

    user: str
    """Name, as the way in has proven it."""
    groups: tuple[str, ...] = ()
    """Groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the gate said last."""

    state: str
    """Where the proposal stands with the policy."""
    reason: str
    """Stable code."""
    sentence: str
    """For people."""
    policy: str = ""
    """Policy that decides; empty where none does."""
    policy_digest: Digest | None = None
    """Its digest, which an approval names."""
    name: str = ""
    """Gate within the policy."""
    required: int = 0
    """Approvals that it asks for."""
    received: tuple[str, ...] = ()
    """Users whose approval counts."""
    missing: int = 0
    """Approvals still missing."""
    missing_from: tuple[str, ...] = ()
    """Who may still give one, such as ``group sre``; empty means anyone."""
    ignored: tuple[tuple[str, str], ...] = ()
    """(User, stable code) of approvals that do not count."""
    next_change_at: datetime | None = None
    """When time alone changes the answer; None where it does not."""


def gate_of(answer: GateDecision) -> Gate:
    """Return what the stage answered, as the pages show it."""
    return Gate(
        state=answer.state.value,
        reason=answer.reason.value,
        sentence=explain(answer),
        policy=answer.policy,
        policy_digest=answer.policy_digest,
        name=answer.gate,
        required=answer.required,
        received=answer.received,
        missing=answer.missing,
        missing_from=answer.missing_from,
        ignored=tuple((each.user, each.reason.value) for each in answer.ignored),
        next_change_at=answer.next_change_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One proposal in a list."""

    key: str
    """Last part of its URL."""
    name: str
    """Name that pages show."""
    proposal: Proposal
    """The win."""
    phase: str
    """Where it is, in the source's own word."""
    standing: ReviewPhase
    """Where it is."""
    gate: Gate | None = None
    """Last decision of the gate; None before the first."""
    asked: tuple[str, ...] = ()
    """What people asked for that is not done yet, in words."""
    updated_at: datetime | None = None
    """When it last changed; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One server, pod or process that the swap concerns."""

    name: str
    """Which."""
    told: str
    """Its order, in a word or two."""
    done: bool
    """Whether it says that it has done so."""
    since: datetime | None = None
    """When it got the order."""
    epoch: int | None = None
    """Of its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of what happened."""

    at: datetime
    """When."""
    who: str
    """``retuned`` or a person."""
    what: str
    """Stable code."""
    detail: str = ""
    """The rest."""
    key: str = ""
    """Proposal it is about, where the list is about several."""
    kernel: str = ""
    """Kernel, where the list is about several."""
    target: str = ""
    """Server, where the list is about several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What physics allows one shape; see `roofline`."""

    axes: Mapping[str, int]
    """Lengths of the variable axes."""
    flops: float
    """Operations that no implementation avoids."""
    moved_bytes: float
    """Bytes that no implementation avoids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """What physics allows the shapes of a proposal."""

    shapes: tuple[Roof, ...]
    """Per shape."""
    gflops: float
    """Most operations a second, 1e9, as far as known; 0 where unknown."""
    gbytes_per_s: float
    """Most bytes a second, 1e9; 0 where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBasis:
    """Basis of hours and costs."""

    gpus: int = 1
    """Accelerators that the target uses."""
    busy_ratio: float | None = None
    """Share of time in which kernels run, by the newest profile; None without a profile."""
    usd_per_gpu_hour: float | None = None
    """Price of an hour; None if not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalDetails:
    """One proposal, and everything that is known of it."""

    row: Row
    """As in a list."""
    acts: frozenset[Act]
    """What can mean something now."""
    doubts: Mapping[Act, tuple[str, ...]] = field(default_factory=dict)
    """Why the gate may not count what this viewer says, by act."""
    words: tuple[SwapDecision, ...] = ()
    """What people said, oldest first."""
    document: EvidenceDocument | None = None
    """What it rests on; None where it cannot be read."""
    doubt: Doubt | None = None
    """Why the evidence is not verified; None where it is."""
    candidate: Solution | None = None
    """The variant; None if its source is not stored here."""
    incumbent: Solution | None = None
    """The kernel that it replaces; None if its source is not stored here."""
    places: tuple[NodeRow, ...] = ()
    """Servers, pods or processes."""
    lines: tuple[Line, ...] = ()
    """What happened, oldest first."""
    sample: WatchSample | None = None
    """Last counts of the runtime; None if no order is in force or no counts are known."""
    end_to_end: EndToEndReport | None = None
    """What the whole server gained; None where it was not measured."""
    forecast: Forecast | None = None
    """Predicted gain of a step; None without one."""
    plan: tuple[str, ...] = ()
    """What a live proof will do by the policy in force, in sentences; empty where it is unknown."""
    live_proof: ProofState | None = None
    """Pairs with the swap on and off in live traffic; None where it was not proven."""
    proofs: tuple[tuple[str, ProofState], ...] = ()
    """In a cluster: the newest pods that have proven the swap, each with its stored pairs."""
    accounts: tuple[tuple[str, StepAccount], ...] = ()
    """In a cluster: pods that have proven it, each with where the time of its steps went."""
    roofs: Roofs | None = None
    """Roofs of the device for its shapes; None if unknown."""
    beside: str = ""
    """Unusual states of accelerators while it was measured; empty where nothing was unusual."""
    fleet: CostBasis = CostBasis()
    """Basis of hours and costs."""
    commands: tuple[str, ...] = ()
    """The same in a terminal."""
    comment_wanted: bool = False
    """Whether the policy asks for a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftLine:
    """One drift report in a list."""

    key: str
    """Last part of its URL."""
    target: str
    """Server."""
    at: datetime
    """When its window began."""
    report: DriftReport
    """The answer."""
    beside: str = ""
    """What accelerators did meanwhile; empty where nothing is known or worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of the workload, with what was made of it."""

    line: DriftLine
    """The report."""
    profile: WorkloadProfile | None
    """What ran; None where it is not kept any more."""
    before: WorkloadProfile | None = None
    """The window before it; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Which part of a list the page shows."""

    before: str = ""
    """Only what is older than the entry of this key; empty begins with the newest."""
    limit: int = 50
    """Most entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPage(Generic[T]):
    """A part of a list, newest first."""

    rows: tuple[T, ...]
    """Entries."""
    more: str = ""
    """`Slice.before` of the next part; empty at the end."""
    unreadable: tuple[str, ...] = ()
    """What could not be understood, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What stands on every page."""

    place: str
    """Which installation this is."""
    freezes: tuple[TuningFreeze, ...] = ()
    """Stop signs that stand."""
    counts: Mapping[ReviewPhase, int] = field(default_factory=dict)
    """Proposals by standing."""
    warnings: tuple[str, ...] = ()
    """What a viewer has to know, such as that no daemon runs."""
