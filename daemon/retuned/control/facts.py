"""What the state machines look at, and what they want done. Frozen, without behaviour.

A step gets all that was observed and the time, and returns the status to write and the actions to
take. The status is written first, with the version it was computed from; actions are repeated until
they are seen to be done, so a crash between any two writes changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from retuned.api.decision import SwapDecision
from retuned.api.experiment import JobRole, KernelExperimentStatus
from retuned.api.proposal import SwapProposal, SwapProposalStatus
from retuned.api.target import ActiveKernel, Quarantined, TuningTarget
from retuned.contract import Digest
from retuned.control.analysis import Compared
from retuned.stages import gate
from retuned.stages.verdict import Interval
from retuned.stages.watch import WatchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFact:
    """A policy that can be used, and which version of it this is."""

    policy: gate.KernelTuningPolicy
    """The policy."""
    generation: int
    """Generation of its object; decisions name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFact:
    """Why a pod has not carried out an order."""

    epoch: int
    """Of the order."""
    final: bool
    """Whether it will not; otherwise it may do so later."""
    reason: str
    """Stable code of its sidecar, or of its server."""
    detail: str = ""
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """What is known of one server pod and one slot in it."""

    name: str
    """Pod."""
    uid: str
    """Its uid."""
    ready: bool
    """Whether it serves."""
    active: Digest | None = None
    """Artifact in the slot; None is the original."""
    epoch: int = 0
    """Last order that every process of it has carried out; 0 before the first."""
    newest_epoch: int = 0
    """Last order that any process has carried out."""
    tripped: str = ""
    """Why the runtime took the order back by itself; empty if it did not."""
    ends: int = 0
    """How often the server's container has ended."""
    report: WatchReport | None = None
    """What stage 10 says of its samples; None where its sidecar does not report."""
    held: HeldFact | None = None
    """Why it has not carried out its newest order; None where it has, or does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """All that a step of a proposal looks at."""

    target: TuningTarget | None
    """Its servers; None where there is no such target."""
    pods: tuple[PodFact, ...] = ()
    """Every pod of the target."""
    policies: tuple[PolicyFact, ...] | None = ()
    """Policies of the namespace; None while one of them cannot be read."""
    decisions: tuple[SwapDecision, ...] | None = ()
    """Decisions of the namespace; None while one that may be about it cannot be read."""
    freezes: tuple[gate.TuningFreeze, ...] | None = ()
    """Every freeze there is; None while they cannot be listed or read."""
    others: tuple[SwapProposal, ...] = ()
    """All other proposals for the target."""
    live_baseline: Digest | None = None
    """What runs in the slot now, the original included; None while that is not known."""
    evidence_fault: str | None = None
    """Why the evidence does not carry the proposal, stable code; None where it does."""
    evidence_checked: bool = False
    """Whether the evidence was looked at."""
    metrics: Mapping[str, Compared] | None = None
    """Each metric of the policy's analysis, now and before; None or absent is no data."""
    slo_firing: bool | None = False
    """Whether an alert on the service level fires; None while nobody knows."""
    leading: bool = True
    """Whether this process holds the lease; otherwise nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """Write into the target what every pod ought to run."""

    entry: ActiveKernel
    """The variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """Take a kernel out of what every pod ought to run: the original is back."""

    kernel: str
    """Slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Write into the target that an artifact is not proposed again for a while."""

    entry: Quarantined
    """Which, until when and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOnCall:
    """Wake somebody."""

    reason: str
    """Stable code."""
    detail: str
    """For whoever is woken."""


RolloutAction = Activate | Deactivate | Quarantine | PageOnCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What becomes of a proposal."""

    status: SwapProposalStatus
    """To be written before any action; what pods are told is part of it."""
    actions: tuple[RolloutAction, ...] = ()
    """To be taken until they are seen to be done."""
    look_again_at: datetime | None = None
    """When time alone changes something; None where only an event does."""


class JobState(StrEnum):
    """Where a Job is, as its conditions and its pod say."""

    SUSPENDED = "suspended"
    WAITING = "waiting"
    """It was let go, and no node has its pod: it costs nothing."""
    STARTING = "starting"
    """A node has its pod, which does not run yet."""
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    DISRUPTED = "disrupted"
    """Its pod was taken away by production or a node; not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """What is known of one Job."""

    name: str
    """Its name."""
    uid: str
    """Its uid."""
    role: JobRole
    """What it does."""
    attempt: int
    """Which try."""
    state: JobState
    """Where it is."""
    reason: str = ""
    """Why it failed, or why its pod does not run, for people."""
    began_at: datetime | None = None
    """When its pod began to work, as the node says; None where it says nothing."""
    ended_at: datetime | None = None
    """When its pod ended, as the node says; None before, or where it says nothing."""

    @property
    def is_live(self) -> bool:
        """Whether it holds, or may come to hold, a place."""
        return self.state not in (JobState.COMPLETE, JobState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFact:
    """A complete result that one pod has left."""

    job: str
    """Name of its Job."""
    pod_uid: str
    """Which pod: a Job may have had two."""
    at: datetime
    """When it was complete."""
    tried: int = 0
    """Variants that it tried."""
    correct: int = 0
    """Variants that computed the right thing."""
    finalists: int = 0
    """Variants that are worth to be verified."""
    winner: Digest | None = None
    """Variant that a verify Job proved faster; None where none was, and for other Jobs."""
    speedup: Interval | None = None
    """Of the winner."""
    beside: str = ""
    """What accelerators did while it was measured; empty where nothing is known or worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """All that a step of an experiment looks at."""

    jobs: tuple[JobFact, ...] = ()
    """Every Job with the experiment's uid."""
    results: tuple[ResultFact, ...] = ()
    """Complete results with the experiment's uid."""
    lost: tuple[tuple[str, str], ...] = ()
    """Jobs that ended and whose results nobody will ever read, each with a stable code."""
    target: TuningTarget | None = None
    """Its servers; None where there is no such target."""
    policies: tuple[PolicyFact, ...] | None = ()
    """Policies of the namespace; None while one of them cannot be read."""
    freezes: tuple[gate.TuningFreeze, ...] | None = ()
    """Every freeze there is; None while they cannot be listed or read."""
    running_experiments: int = 0
    """Other experiments under the same policy that hold Jobs."""
    gpu_hours_today: float = 0.0
    """Device time of experiments under the same policy in 24 hours."""
    live_baseline: Digest | None = None
    """What runs in the slot now; None while that is not known."""
    slo_firing: bool | None = False
    """Whether an alert on the service level fires; None while nobody knows."""
    queued_elsewhere: bool = False
    """Whether Kueue releases the Jobs."""
    proposal: str | None = None
    """SwapProposal that its win has become; None where there is none yet."""
    refusal: str | None = None
    """Why stage 7 does not propose its win, stable code; None where it does or was not asked."""
    unplaced: tuple[str, str] | None = None
    """Why no pod of it can be placed, stable code and a sentence; None where one can."""
    leading: bool = True
    """Whether this process holds the lease; otherwise nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob:
    """Make a Job, suspended; its name follows from role and attempt."""

    role: JobRole
    """What it does."""
    attempt: int
    """Which try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSuspend:
    """Release a Job, or hold it back."""

    job: str
    """Its name."""
    suspend: bool
    """Which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete a Job with its pods."""

    job: str
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Ask stage 7 about a win, and make its SwapProposal; its name follows from its id."""

    winner: Digest
    """The variant."""
    result: str
    """Uid of the pod that proved it."""


ExperimentAction = CreateJob | SetSuspend | DeleteJob | Propose


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStep:
    """What becomes of an experiment."""

    status: KernelExperimentStatus
    """To be written before any action."""
    actions: tuple[ExperimentAction, ...] = ()
    """To be taken until they are seen to be done."""
    look_again_at: datetime | None = None
    """When time alone changes something; None where only an event does."""
