"""KernelExperiment: a plan that pods carry out, and what came of it.

What came of an experiment: phases, Jobs, trials, the best verified variant.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import (
    Abort,
    ApiModel,
    Code,
    Condition,
    Id,
    KernelName,
    LocalRef,
    Model,
    Note,
    ObjectMeta,
    ObjectName,
    PolicyRef,
    Traceparent,
    Uid,
)
from retuned.contract import Digest, Workload
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.profile import ProfileSettings
from retuned.stages.verdict import Interval


class ExperimentPhase(StrEnum):
    """Where an experiment is; the last six end it."""

    PENDING = "Pending"
    """Nobody has looked at it yet."""
    QUEUED = "Queued"
    """It waits: for its budget, room on a node, the end of a freeze or an alert, or a queue."""
    RUNNING = "Running"
    """Variants are searched."""
    VERIFYING = "Verifying"
    """The finalists are measured again by the trusted harness."""
    PREEMPTED = "Preempted"
    """Production took its place; it begins again."""
    SUCCEEDED = "Succeeded"
    """A winner; its proposal is written."""
    NO_IMPROVEMENT = "NoImprovement"
    """Nothing was proven faster."""
    FAILED = "Failed"
    """Its pods failed; says nothing of the candidates."""
    ABORTED = "Aborted"
    """Somebody ended it."""
    OUTDATED = "Outdated"
    """The servers moved on: another baseline or environment."""
    REFUSED = "Refused"
    """No policy allows it, or it cannot run here."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in _ENDED


_ENDED = frozenset(
    {
        ExperimentPhase.SUCCEEDED,
        ExperimentPhase.NO_IMPROVEMENT,
        ExperimentPhase.FAILED,
        ExperimentPhase.ABORTED,
        ExperimentPhase.OUTDATED,
        ExperimentPhase.REFUSED,
    }
)


class JobRole(StrEnum):
    """What a Job of an experiment does."""

    COMPILE = "compile"
    """Compiles and audits; no accelerator. Where it fails the search does it."""
    GENERATE = "generate"
    """Asks a model for source; reaches its endpoint and runs nothing that was generated. Where it
    fails there is none."""
    SEARCH = "search"
    """Times variants in pods that nobody trusts."""
    VERIFY = "verify"
    """Measures finalists again with the trusted harness, on seeds nobody saw."""


class JobRef(ApiModel):
    """One Job of an experiment."""

    name: ObjectName
    """Its name."""
    uid: Uid
    """Its uid."""
    role: JobRole
    """What it does."""
    attempt: int = Field(default=1, ge=1)
    """Which try; a preempted one is tried again."""
    result: Uid | None = None
    """Uid of the pod whose result counts: the first that was complete; None before."""
    given_up: Note = ""
    """Why the experiment goes on without it: a stable code, and what the pod said. Only of a Job
    that helps others."""


class Trials(ApiModel):
    """How many variants are where."""

    total: int = Field(default=0, ge=0)
    """Tried so far."""
    correct: int = Field(default=0, ge=0)
    """Computed the right thing and were timed."""
    failed: int = Field(default=0, ge=0)
    """Refused by a gate."""
    without_result: int = Field(default=0, ge=0)
    """Whose numbers never came."""


class Best(ApiModel):
    """The best verified variant."""

    digest: Digest
    """Artifact."""
    speedup: Interval
    """Production-weighted, measured again from zero."""
    result: Uid
    """Uid of the pod that measured it."""


class Spell(ApiModel):
    """One stretch of time in which a Job held an accelerator and worked."""

    job: ObjectName
    """Job."""
    started_at: AwareDatetime
    """When its pod began to run."""
    ended_at: AwareDatetime | None = None
    """When it ended, or was taken away or held back; None while it runs."""


class KernelExperimentStatus(ApiModel):
    """What came of it."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this is about."""
    phase: ExperimentPhase = ExperimentPhase.PENDING
    """Where it is."""
    reason: Code = ""
    """Why, stable code."""
    detail: Note = ""
    """Why, for people."""
    trials: Trials = Trials()
    """How many variants are where."""
    best: Best | None = None
    """The best verified variant; None before there is one."""
    job_refs: tuple[JobRef, ...] = Field(
        default=(), max_length=64, json_schema_extra={"x-map-key": "name"}
    )
    """Jobs that were made for it."""
    preemptions: int = Field(default=0, ge=0)
    """How often production took its place."""
    lost_results: int = Field(default=0, ge=0)
    """How often the result of a Job could not be read, and the Job was made again."""
    proposal: ObjectName | None = None
    """SwapProposal that its win became; None where there is none."""
    started_at: AwareDatetime | None = None
    """When its first Job on an accelerator began to run; None before."""
    device_time: tuple[Spell, ...] = Field(default=(), max_length=64)
    """When its Jobs held an accelerator, oldest first: that, and no waiting, is what it costs."""
    finished_at: AwareDatetime | None = None
    """When it ended; None before."""
    traceparent: Traceparent | None = None
    """Span in which it was last written, a W3C ``traceparent``; None where traces are off."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it."""


class Shape(ApiModel):
    """One weighted shape."""

    axes: dict[KernelName, int] = Field(max_length=32)
    """Length of each variable axis."""
    weight: float = Field(default=1.0, ge=0.0)
    """Launches per second; only ratios matter."""


class ExperimentKernel(ApiModel):
    """What is tuned."""

    name: KernelName
    """Definition."""
    shapes: tuple[Shape, ...] = Field(min_length=1, max_length=128)
    """Weighted shapes."""


class Baseline(ApiModel):
    """What runs now."""

    digest: Digest
    """Variant in production."""


class Drift(ApiModel):
    """Why the experiment was thought of."""

    reason: Code = ""
    """Stable code of the drift, such as ``new-shape``."""
    sentence: Note = ""
    """For people."""


class Search(ApiModel):
    """Who proposes variants."""

    generators: tuple[KernelName, ...] = Field(default=("search",), min_length=1, max_length=16)
    """Generators, by name."""
    structures: tuple[KernelName, ...] = Field(default=(), max_length=64)
    """Restrict the search to these structures; empty means all."""


class TrialBudget(ApiModel):
    """Limits; the first one reached ends the experiment."""

    max_candidates: int = Field(default=32, ge=1, le=100_000)
    """Most variants that are compiled."""
    max_seconds: float = Field(default=120.0, gt=0.0, le=1e6)
    """Wall time of the search."""
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants that are measured again from zero."""


class Buckets(ApiModel):
    """How the profile rounded lengths, as `retuned.stages.profile.ProfileSettings`."""

    ladder: tuple[int, ...] = Field(default=ProfileSettings().ladder, max_length=256)
    """Small dims, rising, elements."""
    step: int = Field(default=ProfileSettings().step, ge=1)
    """Above the ladder dims round up to a multiple of this, elements."""
    max_signatures: int = Field(default=ProfileSettings().max_signatures, ge=1)
    """Signatures kept exactly."""
    mode_gap_ratio: float = Field(default=ProfileSettings().mode_gap_ratio, gt=1.0)
    """Two durations further apart are two modes."""
    mode_launches: int = Field(default=ProfileSettings().mode_launches, ge=1)
    """Fewest launches of a mode."""
    modes_max: int = Field(default=ProfileSettings().modes_max, ge=1)
    """Most modes at one geometry."""


class KernelExperimentSpec(ApiModel):
    """The plan; never changes, except that it may be suspended or aborted."""

    target_ref: LocalRef
    """Servers it is for."""
    plan: Id
    """Id of the plan; a replayed plan is the same experiment."""
    hypothesis: Id
    """Id of the belief it tests."""
    kernel: ExperimentKernel
    """What is tuned, at which shapes."""
    gpu_model: Model
    """Accelerator it must run on."""
    environment: Digest
    """Where it must run: evidence from elsewhere does not count."""
    baseline: Baseline
    """What it must beat."""
    drift: Drift = Drift()
    """Why it was thought of."""
    search: Search = Search()
    """Who proposes variants."""
    budget: TrialBudget = TrialBudget()
    """Limits."""
    buckets: Buckets = Buckets()
    """How the profile rounded lengths: each shape stands for its whole bucket."""
    batch_invariant: bool = True
    """Refuse variants whose rows change with the batch's size, where the incumbent's do not."""
    policy_ref: PolicyRef
    """Policy that allowed it."""
    suspend: bool = False
    """Hold its Jobs back; what runs is stopped and begins anew."""
    abort: Abort = Abort()
    """End it."""

    def stage_plan(self) -> ExperimentPlan:
        """Return the plan as the stages and the lab know it."""
        return ExperimentPlan(
            id=self.plan,
            hypothesis=self.hypothesis,
            definition=self.kernel.name,
            workloads=tuple(
                Workload(definition=self.kernel.name, axes=shape.axes, weight=shape.weight)
                for shape in self.kernel.shapes
            ),
            incumbent=self.baseline.digest,
            generators=self.search.generators,
            structures=self.search.structures,
            budget=Budget(**self.budget.model_dump()),
            environment=self.environment,
            buckets=ProfileSettings(**self.buckets.model_dump()),
            batch_invariant=self.batch_invariant,
        )


def experiment_spec(
    plan: ExperimentPlan,
    *,
    target: str,
    gpu_model: str,
    policy: PolicyRef,
    drift: Drift | None = None,
) -> KernelExperimentSpec:
    """Write a plan as the spec of a custom resource; `stage_plan` reads it back.

    Parameters
    ----------
    target
        Name of the TuningTarget, without its namespace.
    gpu_model
        Accelerator that the sidecars report.
    policy
        The policy that allows the experiment, as it stands.
    drift
        Why; empty by default.

    Raises
    ------
    ValueError
        If the plan is larger than an object may be.
    """
    return KernelExperimentSpec(
        target_ref=LocalRef(name=target),
        plan=plan.id,
        hypothesis=plan.hypothesis,
        kernel=ExperimentKernel(
            name=plan.definition,
            shapes=tuple(Shape(axes=w.axes, weight=w.weight) for w in plan.workloads),
        ),
        gpu_model=gpu_model,
        environment=plan.environment,
        baseline=Baseline(digest=plan.incumbent),
        drift=drift or Drift(),
        search=Search(generators=plan.generators, structures=plan.structures),
        budget=TrialBudget(**plan.budget.model_dump()),
        buckets=Buckets(**plan.buckets.model_dump()),
        batch_invariant=plan.batch_invariant,
        policy_ref=policy,
    )


class KernelExperiment(ApiModel):
    """One experiment on one kernel for one target."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["KernelExperiment"]
    metadata: ObjectMeta
    """Name."""
    spec: KernelExperimentSpec
    """The plan."""
    status: KernelExperimentStatus = KernelExperimentStatus()
    """What came of it."""
