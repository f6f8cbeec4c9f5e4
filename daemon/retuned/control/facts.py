"""Facts and actions: inputs and outputs of the state machines. Frozen, without behaviour.

A step gets all observations and the time, and returns the status to write and the actions to take.
The status is written first, with the version it was computed from. Actions are repeated until they
are observed as done, so a crash between any two writes changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from retuned.api.agent import LevelsState, PodBoot
from retuned.api.decision import SwapDecision
from retuned.api.experiment import JobRole, KernelExperimentStatus
from retuned.api.proposal import LiveProofStatus, SwapProposal, SwapProposalStatus
from retuned.api.target import ActiveKernel, Quarantined, TuningTarget
from retuned.contract import Digest
from retuned.control.analysis import Compared
from retuned.stages import gate
from retuned.stages.verdict import Interval
from retuned.stages.watch import Consequence, WatchReport
from retuned.stages.watch.proof import Coin, ProofReport, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFact:
    """A valid policy, and the generation of its object."""

    policy: gate.KernelTuningPolicy
    generation: int
    """Generation of its object; decisions name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFact:
    """Why a pod has not committed an order."""

    epoch: int
    """Of the order."""
    final: bool
    """Whether it never will; otherwise it may do so later."""
    reason: str
    """Stable code of its sidecar, or of its server."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFact:
    """What a measurement of the server means for a swap."""

    consequence: Consequence = Consequence.KEEP
    """Whether the swap may be promoted, must wait for the measurement, or must roll back."""
    reason: str = ""
    """Stable code; empty if nothing was measured."""
    detail: str = ""
    blames: bool = True
    """Whether a rollback quarantines the artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofFact:
    """What a pod reports of live proofs."""

    unavailable: str = ""
    """Why its server's steps cannot be timed, stable code; empty if they can."""
    temporary: bool = False
    """Whether that may change without a restart."""
    levels: LevelsState = LevelsState.ABSENT
    """Whether its sidecar reads the server's service levels."""
    epoch: int = 0
    """Order of the proposal that it proves, or has proven; 0 without one."""
    phase: str = ""
    """Part of that proof; empty without one."""
    report: ProofReport | None = None
    """Verdict that follows from its pairs; None before."""
    sentence: str = ""
    """The verdict in one sentence."""
    day_epoch: int = 0
    """Order that its sentinel measures; 0 without one."""
    day: ProofReport | None = None
    """Verdict that follows from the pairs of the newest day of its sentinel; None before."""
    day_sentence: str = ""
    """That verdict in one sentence."""
    trial_epoch: int = 0
    """Order that it has tried off for an alarm; 0 without one."""
    trial: ProofReport | None = None
    """Verdict that follows from the pairs of the newest trial; None without one."""
    trial_sentence: str = ""
    """That verdict in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """State of one server pod and one slot in it."""

    name: str
    uid: str
    ready: bool
    """Whether it serves."""
    active: Digest | None = None
    """Artifact in the slot; None is the original."""
    epoch: int = 0
    """Last order that all its processes have committed; 0 before the first."""
    newest_epoch: int = 0
    """Last order that any process has committed."""
    tripped: str = ""
    """Why the runtime's circuit breaker stopped the order; empty if it did not."""
    ends: int = 0
    """How often the server's container has ended."""
    report: WatchReport | None = None
    """Stage 10's report on its samples; None if its sidecar does not report."""
    held: HeldFact | None = None
    """Why it has not committed its newest order; None if it has, or if the reason is unknown."""
    environment: str | None = None
    """Digest of what its server runs on; empty if its processes differ, None if unknown."""
    proof: ProofFact | None = None
    """What it reports of live proofs; None if its sidecar does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFact:
    """State of one canary replica, a pod that the operator made."""

    name: str
    uid: str
    made_at: datetime
    """When the API server made it."""
    running: bool
    """Whether its containers run, ready or not."""
    failed: str = ""
    """Why it is of no use any more, stable code; empty if it may be."""
    environment: str | None = None
    """Digest of what its server runs on; empty if its processes differ, None if unknown."""
    active: Digest | None = None
    """Artifact in the slot; None is the original, or unknown."""
    reports: bool = False
    """Whether its sidecar reports live proofs."""
    ready_since: datetime | None = None
    """Since when it serves; None if it does not."""
    boot: PodBoot | None = None
    """What its sidecar reports of its boot; None if nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """All observations for a proof by canary replicas, where the operator may make pods."""

    pods: tuple[ReplicaFact, ...] = ()
    """Replicas of the proposal that exist."""
    templates: tuple[Digest, ...] = ()
    """Pod templates of serving pods with the proposal's environment; empty if none is known."""
    no_template: str = ""
    """Why none of them can be used, for people; empty if one can, or none is known."""
    state: ReplicaState | None = None
    """The stored state; None before the first."""
    lost: bool = False
    """Whether there is a state and it cannot be read any more."""
    coin: Coin
    """Source of random bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """All observations for a step of a proposal."""

    target: TuningTarget | None
    """Its target; None if it does not exist."""
    pods: tuple[PodFact, ...] = ()
    """Every pod of the target."""
    policies: tuple[PolicyFact, ...] | None = ()
    """Policies of the namespace; None while one of them cannot be read."""
    decisions: tuple[SwapDecision, ...] | None = ()
    """Decisions of the namespace; None while one that may be about it cannot be read."""
    freezes: tuple[gate.TuningFreeze, ...] | None = ()
    """All freezes; None while they cannot be listed or read."""
    others: tuple[SwapProposal, ...] = ()
    """All other proposals for the target."""
    live_baseline: Digest | None = None
    """Digest of the incumbent of the slot, the original included; None while unknown."""
    evidence_fault: str | None = None
    """Why the evidence does not support the proposal, stable code; None if it does."""
    evidence_checked: bool = False
    """Whether the evidence was checked."""
    metrics: Mapping[str, Compared] | None = None
    """Each metric of the policy's analysis, now and before; None or absent means no data."""
    slo_firing: bool | None = False
    """Whether an alert on the service level fires; None while unknown."""
    end_to_end: MeasuredFact = MeasuredFact()
    """Result of gate G7, which measures the whole server with the swap off and on."""
    live_proof: MeasuredFact = MeasuredFact()
    """Result of the live proof of the present wave."""
    live_proofs: tuple[LiveProofStatus, ...] | None = None
    """Live proofs by node agents, as the pods report them; None where the control plane proves."""
    sentinels: tuple[LiveProofStatus, ...] | None = None
    """Sentinels by node agents, as the pods report them; None where the control plane measures."""
    attributions: tuple[LiveProofStatus, ...] | None = None
    """Trials of alarms by node agents, as the pods report them; None where the control plane has
    them."""
    repeated_proof: MeasuredFact = MeasuredFact()
    """Result of pairs of a swap that was kept: of an alarm that tried it off, or of its sentinel.
    """
    unavailable: str = ""
    """What the policy requires and is not possible here, stable code; empty if nothing is."""
    unavailable_detail: str = ""
    """Which server cannot do it, and why."""
    replicas: ReplicaFacts | None = None
    """Canary replicas; None where the control plane makes none."""
    leading: bool = True
    """Whether this process holds the lease; without it nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """Write into the target which variant every pod must run."""

    entry: ActiveKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """Remove a kernel from the target's active variants: every pod runs the original."""

    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Write into the target that an artifact is quarantined."""

    entry: Quarantined
    """The artifact, the end and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOnCall:
    """Page the person on call."""

    reason: str
    detail: str


RolloutAction = Activate | Deactivate | Quarantine | PageOnCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """Result of a step of a proposal."""

    status: SwapProposalStatus
    """Must be written before any action; it contains the orders of the pods."""
    actions: tuple[RolloutAction, ...] = ()
    """Must be repeated until they are observed as done."""
    look_again_at: datetime | None = None
    """When time alone changes something; None if only an event does."""
    replica_state: ReplicaState | None = None
    """New state of a proof by canary replicas: must be kept before the status, which names it;
    None if it has not changed."""


class JobState(StrEnum):
    """State of a Job, from its conditions and its pod."""

    SUSPENDED = "suspended"
    WAITING = "waiting"
    """It was released, and its pod is not on a node: it costs nothing."""
    STARTING = "starting"
    """Its pod is on a node but does not run yet."""
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    DISRUPTED = "disrupted"
    """Production or a node removed its pod; not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """Observed state of one Job."""

    name: str
    uid: str
    role: JobRole
    attempt: int
    state: JobState
    reason: str = ""
    """Why it failed, or why its pod does not run."""
    began_at: datetime | None = None
    """When its pod began to work, as the node reports it; None if unknown."""
    ended_at: datetime | None = None
    """When its pod ended, as the node reports it; None before that, or if unknown."""

    @property
    def is_live(self) -> bool:
        """Whether it holds, or may come to hold, an accelerator."""
        return self.state not in (JobState.COMPLETE, JobState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFact:
    """A complete result of one pod."""

    job: str
    """Name of its Job."""
    pod_uid: str
    """Its pod: a Job may have had two."""
    at: datetime
    """When it was complete."""
    tried: int = 0
    """Number of variants that it tried."""
    correct: int = 0
    """Variants with a correct result."""
    finalists: int = 0
    """Variants that are worth verifying."""
    winner: Digest | None = None
    """Variant that a verify Job proved faster; None without one, and for other Jobs."""
    speedup: Interval | None = None
    beside: str = ""
    """State of the accelerators during the measurement; empty if unknown or ordinary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """All observations for a step of an experiment."""

    jobs: tuple[JobFact, ...] = ()
    """Every Job with the experiment's uid."""
    results: tuple[ResultFact, ...] = ()
    """Complete results with the experiment's uid."""
    lost: tuple[tuple[str, str], ...] = ()
    """Jobs that ended and whose results are unreadable, each with a stable code."""
    target: TuningTarget | None = None
    """Its target; None if it does not exist."""
    policies: tuple[PolicyFact, ...] | None = ()
    """Policies of the namespace; None while one of them cannot be read."""
    freezes: tuple[gate.TuningFreeze, ...] | None = ()
    """All freezes; None while they cannot be listed or read."""
    running_experiments: int = 0
    """Other experiments under the same policy that hold Jobs."""
    gpu_hours_today: float = 0.0
    """Device time of experiments under the same policy in 24 hours."""
    live_baseline: Digest | None = None
    """Digest of the incumbent of the slot; None while unknown."""
    slo_firing: bool | None = False
    """Whether an alert on the service level fires; None while unknown."""
    queued_elsewhere: bool = False
    """Whether Kueue releases the Jobs."""
    proposal: str | None = None
    """SwapProposal made from its win; None before it exists."""
    refusal: str | None = None
    """Why stage 7 refuses its win, stable code; None if it does not, or was not called."""
    refusal_detail: str = ""
    """The refusal in one sentence; empty if the code is enough."""
    unplaced: tuple[str, str] | None = None
    """Why its pods cannot be scheduled, stable code and a sentence; None if they can."""
    leading: bool = True
    """Whether this process holds the lease; without it nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob:
    """Create a Job, suspended; role and attempt give its name."""

    role: JobRole
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSuspend:
    """Release or suspend a Job."""

    job: str
    suspend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete a Job with its pods."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Run stage 7 on a win and create its SwapProposal; its id gives the name."""

    winner: Digest
    result: str
    """Uid of the pod that proved it."""


ExperimentAction = CreateJob | SetSuspend | DeleteJob | Propose


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStep:
    """Result of a step of an experiment."""

    status: KernelExperimentStatus
    """Must be written before any action."""
    actions: tuple[ExperimentAction, ...] = ()
    """Must be repeated until they are observed as done."""
    look_again_at: datetime | None = None
    """When time alone changes something; None if only an event does."""
