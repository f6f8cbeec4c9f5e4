"""What came of an experiment: phases, Jobs, trials, the best verified variant."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Digest
from retuned.stages.verdict import Interval
from retuned_operator.crds.values import (
    ApiModel,
    Code,
    Condition,
    Note,
    ObjectName,
    Traceparent,
    Uid,
)


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
