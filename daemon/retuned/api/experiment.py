"""KernelExperiment: a plan that pods execute, its phases, Jobs, trials and best variant."""

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
    """Phase of an experiment; the last six end it."""

    PENDING = "Pending"
    """The operator has not processed it yet."""
    QUEUED = "Queued"
    """It waits for its budget, capacity, the end of a freeze or an alert, or a queue."""
    RUNNING = "Running"
    """The search runs."""
    VERIFYING = "Verifying"
    """The trusted harness measures the finalists again."""
    PREEMPTED = "Preempted"
    """Production took its capacity; it restarts."""
    SUCCEEDED = "Succeeded"
    """It has a winner; the proposal is written."""
    NO_IMPROVEMENT = "NoImprovement"
    """No variant was proven faster."""
    FAILED = "Failed"
    """Its pods failed; this is not evidence about the candidates."""
    ABORTED = "Aborted"
    """A person ended it."""
    OUTDATED = "Outdated"
    """The servers changed: another baseline or environment."""
    REFUSED = "Refused"
    """No policy allows it, or it cannot run here."""

    @property
    def is_terminal(self) -> bool:
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
    """Task of a Job."""

    COMPILE = "compile"
    """Compiles and audits without an accelerator. If it fails, the search compiles."""
    GENERATE = "generate"
    """Requests source from a language model; it reaches the model's endpoint and runs no generated
    code. If it fails, the search has no generated source."""
    SEARCH = "search"
    """Times variants in untrusted pods."""
    VERIFY = "verify"
    """Measures finalists again with the trusted harness, on unseen seeds."""


class JobRef(ApiModel):
    """One Job of an experiment."""

    name: ObjectName
    """Name of the Job."""
    uid: Uid
    """Uid of the Job."""
    role: JobRole
    """Task of the Job."""
    attempt: int = Field(default=1, ge=1)
    """Number of the attempt; a preempted Job is retried."""
    result: Uid | None = None
    """Uid of the pod whose result counts: the first complete one. Unset before."""
    given_up: Note = ""
    """Why the experiment continues without it: a stable code and the pod's message.

    Only for a Job that helps others."""


class Trials(ApiModel):
    """Number of variants by result."""

    total: int = Field(default=0, ge=0)
    """Variants tried so far."""
    correct: int = Field(default=0, ge=0)
    """Variants with correct results that were timed."""
    failed: int = Field(default=0, ge=0)
    """Variants that a gate refused."""
    without_result: int = Field(default=0, ge=0)
    """Variants whose results are missing."""


class Best(ApiModel):
    """The best verified variant."""

    digest: Digest
    """Digest of the artifact."""
    speedup: Interval
    """Speedup, weighted by production launches, measured again from zero."""
    result: Uid
    """Uid of the pod that measured it."""


class Spell(ApiModel):
    """A span of time in which a Job used an accelerator."""

    job: ObjectName
    """Name of the Job."""
    started_at: AwareDatetime
    """When its pod began to run."""
    ended_at: AwareDatetime | None = None
    """When its pod ended, was preempted or was suspended. Unset while it runs."""


class KernelExperimentStatus(ApiModel):
    """Result of the experiment."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status describes."""
    phase: ExperimentPhase = ExperimentPhase.PENDING
    """Phase of the experiment."""
    reason: Code = ""
    """Reason for the phase, a stable code."""
    detail: Note = ""
    """Explanation of the phase."""
    trials: Trials = Trials()
    """Number of variants by result."""
    best: Best | None = None
    """The best verified variant. Unset before there is one."""
    job_refs: tuple[JobRef, ...] = Field(
        default=(), max_length=64, json_schema_extra={"x-map-key": "name"}
    )
    """Jobs created for the experiment."""
    preemptions: int = Field(default=0, ge=0)
    """How often production took its capacity."""
    lost_results: int = Field(default=0, ge=0)
    """How often a Job's result was unreadable and the Job was created again."""
    proposal: ObjectName | None = None
    """SwapProposal made from its win. Unset without one."""
    started_at: AwareDatetime | None = None
    """When its first Job on an accelerator began to run. Unset before."""
    device_time: tuple[Spell, ...] = Field(default=(), max_length=64)
    """Times in which its Jobs used an accelerator, oldest first.

    Their sum is its cost; waiting is free."""
    finished_at: AwareDatetime | None = None
    """When it ended. Unset before."""
    traceparent: Traceparent | None = None
    """Span of the last write, a W3C ``traceparent``. Unset if tracing is off."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the experiment."""


class Shape(ApiModel):
    """One weighted shape."""

    axes: dict[KernelName, int] = Field(max_length=32)
    """Length of each variable axis."""
    weight: float = Field(default=1.0, ge=0.0)
    """Launches per second; only ratios matter."""


class ExperimentKernel(ApiModel):
    """The kernel to tune."""

    name: KernelName
    """Name of its definition."""
    shapes: tuple[Shape, ...] = Field(min_length=1, max_length=128)
    """Weighted shapes."""


class Baseline(ApiModel):
    """The incumbent at the time of the plan."""

    digest: Digest
    """Digest of the incumbent."""


class Drift(ApiModel):
    """The drift that caused the experiment."""

    reason: Code = ""
    """Stable code of the drift, such as ``new-shape``."""
    sentence: Note = ""
    """The drift report in one sentence."""


class Search(ApiModel):
    """How variants are generated."""

    generators: tuple[KernelName, ...] = Field(default=("search",), min_length=1, max_length=16)
    """Names of the generators."""
    structures: tuple[KernelName, ...] = Field(default=(), max_length=64)
    """Restrict the search to these structures; empty means all."""


class TrialBudget(ApiModel):
    """Limits; the first one reached ends the experiment."""

    max_candidates: int = Field(default=32, ge=1, le=100_000)
    """Most variants that are compiled."""
    max_seconds: float = Field(default=120.0, gt=0.0, le=1e6)
    """Wall time of the search, seconds."""
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants that are measured again from zero."""


class Buckets(ApiModel):
    """How the profile rounded lengths; fields as in `retuned.stages.profile.ProfileSettings`."""

    ladder: tuple[int, ...] = Field(default=ProfileSettings().ladder, max_length=256)
    """Buckets of small dims, rising, elements."""
    step: int = Field(default=ProfileSettings().step, ge=1)
    """Above the ladder dims round up to a multiple of this, elements."""
    max_signatures: int = Field(default=ProfileSettings().max_signatures, ge=1)
    """Signatures kept exactly."""
    mode_gap_ratio: float = Field(default=ProfileSettings().mode_gap_ratio, gt=1.0)
    """Factor between durations from which two modes are distinct."""
    mode_launches: int = Field(default=ProfileSettings().mode_launches, ge=1)
    """Fewest launches of a duration mode."""
    modes_max: int = Field(default=ProfileSettings().modes_max, ge=1)
    """Most duration modes at one geometry."""


class KernelExperimentSpec(ApiModel):
    """The plan. It is immutable, except that it may be suspended or aborted."""

    target_ref: LocalRef
    """TuningTarget of the experiment."""
    plan: Id
    """Id of the plan; equal plans are the same experiment."""
    hypothesis: Id
    """Id of the hypothesis that it tests."""
    kernel: ExperimentKernel
    """Kernel and shapes to tune."""
    gpu_model: Model
    """Accelerator model it must run on."""
    environment: Digest
    """Digest of the required environment; evidence from another one does not count."""
    baseline: Baseline
    """The incumbent that it must beat."""
    drift: Drift = Drift()
    """The drift that caused it."""
    search: Search = Search()
    """How variants are generated."""
    budget: TrialBudget = TrialBudget()
    """Limits of the experiment."""
    buckets: Buckets = Buckets()
    """How the profile rounded lengths: each shape represents its whole bucket."""
    batch_invariant: bool = True
    """Whether to refuse variants whose rows change with the batch's size, if the incumbent's rows
    do not."""
    policy_ref: PolicyRef
    """Policy that allowed it."""
    suspend: bool = False
    """Suspend its Jobs; a running Job is stopped and restarts later."""
    abort: Abort = Abort()
    """End the experiment."""

    def stage_plan(self) -> ExperimentPlan:
        """Return the plan as the record of the stages and the lab."""
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
    """Render a plan as the spec of a custom resource; `stage_plan` is the inverse.

    Parameters
    ----------
    target
        Name of the TuningTarget, without its namespace.
    gpu_model
        Accelerator that the sidecars report.
    policy
        The policy that allows the experiment, at its present generation.
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
    """Name of the experiment."""
    spec: KernelExperimentSpec
    """The plan."""
    status: KernelExperimentStatus = KernelExperimentStatus()
    """Result of the experiment."""
