"""An experiment's way: queued, searched, verified by the trusted harness, proposed.

`step` is level-triggered like that of proposals. Jobs are made suspended and released when the
budget allows; one that production took away is tried again and is no failure; one that failed ends
the experiment, and whatever ends it deletes every Job that still lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from retuned.stages.gate import Mode
from retuned_operator.crds.experiment import KernelExperiment
from retuned_operator.crds.experiment_status import (
    Best,
    ExperimentPhase,
    JobRef,
    JobRole,
    KernelExperimentStatus,
    Trials,
)
from retuned_operator.crds.target import TargetMode
from retuned_operator.crds.values import Condition, ConditionStatus, with_condition
from retuned_operator.machine import gating
from retuned_operator.machine.records import (
    CreateJob,
    DeleteJob,
    ExperimentAction,
    ExperimentFacts,
    ExperimentStep,
    JobFact,
    JobState,
    PolicyFact,
    Propose,
    ResultFact,
    SetSuspend,
)

PIPELINE: tuple[JobRole, ...] = (JobRole.SEARCH, JobRole.VERIFY)
"""Jobs of an experiment, in order; the last is the trusted one."""
MAX_PREEMPTIONS = 8
"""After so many the cluster has no room for it now."""
RESULT_PATIENCE = timedelta(minutes=5)
"""A Job that is complete and left no result by then has none: nobody waits for it for ever."""
_LOOK_AGAIN = timedelta(seconds=30)
_P = ExperimentPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One step: the object, what was observed, and the status so far."""

    resource: KernelExperiment
    facts: ExperimentFacts
    now: datetime
    pipeline: tuple[JobRole, ...]
    status: KernelExperimentStatus
    actions: tuple[ExperimentAction, ...] = ()

    def to(self, phase: ExperimentPhase, reason: str, detail: str = "") -> _Case:
        """Return the case in a phase, with its reason."""
        update: dict[str, object] = {"phase": phase, "reason": reason, "detail": detail[:2048]}
        if phase.is_terminal and self.status.finished_at is None:
            update["finished_at"] = self.now
        return self.having(**update)

    def having(self, **update: object) -> _Case:
        """Return the case with other fields in its status."""
        return replace(self, status=self.status.model_copy(update=update))

    def doing(self, *actions: ExperimentAction) -> _Case:
        """Return the case with more to be done."""
        return replace(self, actions=(*self.actions, *actions))


def step(
    resource: KernelExperiment,
    facts: ExperimentFacts,
    *,
    now: datetime,
    pipeline: tuple[JobRole, ...] = PIPELINE,
) -> ExperimentStep:
    """Say what becomes of an experiment.

    Parameters
    ----------
    resource
        The experiment as it is.
    facts
        Everything else as it is.
    now
        Moment, with a zone.
    pipeline
        Jobs, in order; the last one verifies.
    """
    if not facts.leading:
        return ExperimentStep(status=resource.status)
    status = resource.status.model_copy(
        update={"observed_generation": resource.metadata.generation}
    )
    case = _Case(resource=resource, facts=facts, now=now, pipeline=pipeline, status=status)
    if not case.status.phase.is_terminal:
        case = _going(_with_results(case))
    if case.status.phase.is_terminal:
        case = replace(case, actions=_cleared(facts.jobs))
        return ExperimentStep(status=case.status, actions=case.actions)
    return ExperimentStep(status=case.status, actions=case.actions, look_again_at=now + _LOOK_AGAIN)


def _cleared(jobs: Sequence[JobFact]) -> tuple[ExperimentAction, ...]:
    """Nothing of an experiment that is over holds an accelerator."""
    return tuple(DeleteJob(job=job.name) for job in jobs if job.is_live)


def _with_results(case: _Case) -> _Case:
    """Keep which pod's result counts for each Job: the first that was complete, for good."""
    refs = {ref.name: ref for ref in case.status.job_refs}
    for job in case.facts.jobs:
        known = refs.get(job.name)
        if known is None or (known.uid != job.uid and known.result is None):
            refs[job.name] = JobRef(name=job.name, uid=job.uid, role=job.role, attempt=job.attempt)
    for name, ref in refs.items():
        mine = [result for result in case.facts.results if result.job == name]
        if ref.result is None and mine:
            first = min(mine, key=lambda each: (each.at, each.pod_uid))
            refs[name] = ref.model_copy(update={"result": first.pod_uid})
    counted = [result for ref in refs.values() if (result := _result(case, ref)) is not None]
    tried = sum(result.tried for result in counted)
    correct = sum(result.correct for result in counted)
    trials = Trials(total=tried, correct=correct, failed=max(0, tried - correct))
    newest = tuple(sorted(refs.values(), key=lambda ref: (ref.attempt, ref.name)))[-64:]
    return case.having(job_refs=newest, trials=trials)


def _result(case: _Case, ref: JobRef) -> ResultFact | None:
    """Return the result that counts for a Job; None where there is none, or it is not seen now."""
    return next(
        (
            each
            for each in case.facts.results
            if each.job == ref.name and each.pod_uid == ref.result
        ),
        None,
    )


def _going(case: _Case) -> _Case:
    """Go one step further, or end."""
    ended = _ended(case)
    if ended is not None:
        return ended
    for role in case.pipeline:
        result = _done(case, role)
        if result is None:
            return _due(case, role)
        if role is case.pipeline[-1]:
            return _verified(case, result)
        if result.finalists == 0:
            return case.to(_P.NO_IMPROVEMENT, "nothing-found")
    return case.to(_P.FAILED, "no-pipeline")


def _done(case: _Case, role: JobRole) -> ResultFact | None:
    """Return the result of a role, whichever try brought it, also when its Job is gone by now."""
    for ref in case.status.job_refs:
        if ref.role is role and ref.result is not None:
            return _result(case, ref)
    return None


def _due(case: _Case, role: JobRole) -> _Case:
    """Drive the one Job that is due; others that still live are deleted before."""
    attempt = case.status.preemptions + 1
    job = _job(case, role, attempt)
    stale = [each for each in case.facts.jobs if each.is_live and each is not job]
    if stale:
        deleted = tuple(DeleteJob(job=each.name) for each in stale)
        return case.to(_P.QUEUED, "clearing-away").doing(*deleted)
    if job is not None and job.state is JobState.COMPLETE:
        return _without_result(case, role)
    return _driven(case, role, job, attempt=attempt, held=_held(case))


def _ended(case: _Case) -> _Case | None:
    """End it where somebody said so, or where what it would find could not be used."""
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
    failed = [job for job in facts.jobs if job.state is JobState.FAILED]
    if failed:
        detail = f"{failed[0].name}: {failed[0].reason}"
        return case.to(_P.FAILED, "job-failed", detail)
    if case.status.preemptions >= MAX_PREEMPTIONS:
        return case.to(_P.FAILED, "preempted-too-often")
    chosen = _policy(case)
    if chosen is not None and not _allows(chosen):
        return case.to(_P.REFUSED, "policy-forbids")
    return None


def _policy(case: _Case) -> PolicyFact | None:
    facts = case.facts
    if facts.policies is None or facts.target is None:
        return None
    labels = gating.labels_of(facts.target)
    return gating.choose(facts.policies, case.resource.spec.kernel.name, labels=labels)[0]


def _allows(chosen: PolicyFact) -> bool:
    spec = chosen.policy.spec
    budget = spec.experiments.max_concurrent > 0 and spec.experiments.budget.gpu_hours_per_day > 0
    return budget and spec.mode is not Mode.OBSERVE_ONLY


def _held(case: _Case) -> str:
    """Return why no Job may run now, or nothing. What is not known holds it."""
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


def _job(case: _Case, role: JobRole, attempt: int) -> JobFact | None:
    return next(
        (job for job in case.facts.jobs if job.role is role and job.attempt == attempt), None
    )


def _driven(case: _Case, role: JobRole, job: JobFact | None, *, attempt: int, held: str) -> _Case:
    """Make, release, hold back or count out the one Job that is due."""
    working = _P.VERIFYING if role is case.pipeline[-1] else _P.RUNNING
    if job is not None and job.state is JobState.DISRUPTED:
        case = case.having(preemptions=case.status.preemptions + 1)
        return case.to(_P.PREEMPTED, "preempted").doing(DeleteJob(job=job.name))
    if job is None:
        if held:
            return case.to(_P.QUEUED, held)
        return case.to(_P.QUEUED, "job-made").doing(CreateJob(role=role, attempt=attempt))
    if held:
        case = case.to(_P.QUEUED, held)
        if job.state is JobState.RUNNING:
            return case.doing(SetSuspend(job=job.name, suspend=True))
        return case
    if job.state is JobState.SUSPENDED:
        if case.facts.queued_elsewhere:
            return case.to(_P.QUEUED, "waits-in-queue")
        return case.to(_P.QUEUED, "released").doing(SetSuspend(job=job.name, suspend=False))
    started = case.status.started_at or case.now
    return case.having(started_at=started).to(working, "running")


def _without_result(case: _Case, role: JobRole) -> _Case:
    """Wait a little for the result of a Job that is complete; then there is none."""
    waiting = case.status.reason == "waiting-for-result"
    since = next((c for c in case.status.conditions if c.type == "WaitingForResult"), None)
    if waiting and since is not None and case.now >= since.last_transition_time + RESULT_PATIENCE:
        trials = case.status.trials.model_copy(update={"without_result": 1})
        return case.having(trials=trials).to(_P.FAILED, "no-result", str(role))
    phase = _P.VERIFYING if role is case.pipeline[-1] else _P.RUNNING
    return _marked(case).to(phase, "waiting-for-result")


def _marked(case: _Case) -> _Case:
    if case.status.reason == "waiting-for-result":
        return case
    conditions = tuple(c for c in case.status.conditions if c.type != "WaitingForResult")
    mark = Condition(
        type="WaitingForResult",
        status=ConditionStatus.TRUE,
        last_transition_time=case.now,
        reason="JobComplete",
        message="",
    )
    return case.having(conditions=with_condition(conditions, mark))


def _verified(case: _Case, result: ResultFact) -> _Case:
    """Propose what the trusted Job proved; nothing else may."""
    if result.winner is None or result.speedup is None:
        return case.to(_P.NO_IMPROVEMENT, "not-proven")
    best = Best(digest=result.winner, speedup=result.speedup, result=result.pod_uid)
    case = case.having(best=best)
    if case.facts.proposal is not None:
        return case.having(proposal=case.facts.proposal).to(_P.SUCCEEDED, "proposed")
    if case.facts.refusal is not None:
        return case.to(_P.NO_IMPROVEMENT, case.facts.refusal)
    target = case.facts.target
    assert target is not None, "its absence ends an experiment"
    quarantined = any(
        each.digest == result.winner and case.now < each.until for each in target.status.quarantine
    )
    if quarantined:
        return case.to(_P.NO_IMPROVEMENT, "quarantined")
    return case.to(_P.VERIFYING, "proven").doing(
        Propose(winner=result.winner, result=result.pod_uid)
    )
