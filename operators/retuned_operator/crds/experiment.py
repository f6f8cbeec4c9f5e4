"""KernelExperiment: a plan that pods carry out, and what came of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from retuned.contract import Digest, Workload
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.profile import ProfileSettings
from retuned_operator.crds.experiment_status import KernelExperimentStatus
from retuned_operator.crds.values import (
    Abort,
    ApiModel,
    Code,
    Id,
    KernelName,
    LocalRef,
    Model,
    Note,
    ObjectMeta,
    PolicyRef,
)


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
