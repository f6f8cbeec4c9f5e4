"""One step of an experiment: its data, and the conditions that end or suspend it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from retuned.api.experiment import (
    ExperimentPhase,
    JobRole,
    KernelExperiment,
    KernelExperimentStatus,
)
from retuned.api.target import TargetMode
from retuned.control import gate_facts
from retuned.control.facts import ExperimentAction, ExperimentFacts, JobState, PolicyFact
from retuned.stages.gate import Mode, limits_of

MAX_PREEMPTIONS = 8
"""Preemptions after which the cluster has no capacity for it now."""
NECESSARY = (JobRole.SEARCH, JobRole.VERIFY)
"""Jobs whose results an experiment needs; others only help."""
_P = ExperimentPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """One step: the object, the observations, and the status so far."""

    resource: KernelExperiment
    facts: ExperimentFacts
    now: datetime
    pipeline: tuple[JobRole, ...]
    status: KernelExperimentStatus
    actions: tuple[ExperimentAction, ...] = ()

    def to(self, phase: ExperimentPhase, reason: str, detail: str = "") -> TrialStep:
        """Return the step in a phase, with its reason."""
        update: dict[str, object] = {"phase": phase, "reason": reason, "detail": detail[:2048]}
        if phase.is_terminal and self.status.finished_at is None:
            update["finished_at"] = self.now
        return self.having(**update)

    def having(self, **update: object) -> TrialStep:
        """Return the step with other fields in its status."""
        return replace(self, status=self.status.model_copy(update=update))

    def doing(self, *actions: ExperimentAction) -> TrialStep:
        """Return the step with more actions."""
        return replace(self, actions=(*self.actions, *actions))


def ended(case: TrialStep) -> TrialStep | None:
    """End it if a person or a policy did so, or if its result could not be used."""
    spec, facts = case.resource.spec, case.facts
    if spec.abort.requested:
        return case.to(_P.ABORTED, "aborted", spec.abort.reason)
    if facts.target is None:
        return case.to(_P.OUTDATED, "target-gone")
    environment = facts.target.status.environment
    if environment is not None and environment != spec.environment:
        return case.to(_P.OUTDATED, "environment-changed")
    if facts.live_baseline is not None and facts.live_baseline != spec.baseline.digest:
        return case.to(_P.OUTDATED, "baseline-changed")
    if spec.gpu_model != facts.target.spec.gpu.model:
        return case.to(_P.REFUSED, "gpu-model-differs")
    if facts.target.spec.mode is TargetMode.OBSERVE:
        return case.to(_P.REFUSED, "target-mode")
    failed = [job for job in facts.jobs if job.state is JobState.FAILED and job.role in NECESSARY]
    if failed:
        detail = f"{failed[0].name}: {failed[0].reason}"
        return case.to(_P.FAILED, "job-failed", detail)
    if case.status.preemptions >= MAX_PREEMPTIONS:
        return case.to(_P.FAILED, "preempted-too-often")
    chosen = _policy(case)
    if chosen is not None and not _allows(chosen):
        return case.to(_P.REFUSED, "policy-forbids")
    return None


def _policy(case: TrialStep) -> PolicyFact | None:
    facts = case.facts
    if facts.policies is None or facts.target is None:
        return None
    labels = gate_facts.labels_of(facts.target)
    return gate_facts.choose(facts.policies, case.resource.spec.kernel.name, labels=labels)[0]


def _allows(chosen: PolicyFact) -> bool:
    policy = chosen.policy
    return limits_of(policy).experiments and policy.spec.mode is not Mode.OBSERVE_ONLY


def held_by(case: TrialStep) -> str:
    """Return why no Job may run now, or an empty text. Unknown facts suspend it."""
    facts, spec = case.facts, case.resource.spec
    chosen = _policy(case)
    if spec.suspend:
        return "suspended"
    if facts.policies is None or facts.freezes is None:
        return "unreadable"
    if chosen is None:
        return "no-policy"
    target = case.facts.target
    assert target is not None, "its absence ends an experiment"
    frozen = any(
        (freeze.until is None or case.now < freeze.until)
        and freeze.scope.covers(target=target.full_name, kernel=spec.kernel.name)
        for freeze in facts.freezes
    )
    rules = chosen.policy.spec.experiments
    if frozen:
        return "frozen"
    if rules.pause_when.slo_alert_firing and facts.slo_firing is not False:
        return "slo-alert"
    if facts.running_experiments >= rules.max_concurrent:
        return "too-many-experiments"
    if facts.gpu_hours_today >= rules.budget.gpu_hours_per_day:
        return "budget-spent"
    return ""
