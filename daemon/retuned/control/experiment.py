"""State machine of an experiment: queued, helped, searched, verified, proposed.

The trusted harness verifies. `step` is level-triggered. Jobs are created suspended and released
when the budget allows. A Job that production preempts is retried and is not a failure. A failed Job
ends the experiment. Every end deletes all Jobs that still exist. Jobs without an accelerator come
first and help the search; if one of them brings no result, the experiment continues without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from retuned.api.experiment import Best, ExperimentPhase, JobRef, JobRole, KernelExperiment, Trials
from retuned.api.values import Condition, ConditionStatus, with_condition
from retuned.control import jobs as placed
from retuned.control.experiment_step import TrialStep, ended, held_by
from retuned.control.facts import (
    CreateJob,
    DeleteJob,
    ExperimentAction,
    ExperimentFacts,
    ExperimentStep,
    JobFact,
    JobState,
    Propose,
    ResultFact,
    SetSuspend,
)
from retuned.errors import RetunedError

PIPELINE: tuple[JobRole, ...] = (JobRole.SEARCH, JobRole.VERIFY)
"""Jobs of every experiment, in order; the last is the trusted one."""
HELPERS: Mapping[JobRole, str] = {JobRole.GENERATE: "generating", JobRole.COMPILE: "compiling"}
"""Jobs that only help, in order, and the phase of the experiment during each.

They hold no accelerator. The search does what they do not do, or it is left out."""
RESULT_PATIENCE = timedelta(minutes=5)
"""A complete Job that left no result after this time has none."""
MAX_LOST_RESULTS = 2
"""Retries of a Job whose result was lost; a longer series has a permanent cause."""
_LONGEST_WHY = 300
_LOOK_AGAIN = timedelta(seconds=30)
_P = ExperimentPhase


_TUNABLE = "tunable:"


def pipeline_of(*, generates: bool, compiles: bool, tunable: bool = False) -> tuple[JobRole, ...]:
    """Return the Jobs of an experiment, in order.

    For a tunable it is the trusted one alone: no generated code runs, so one run searches and
    measures.

    Examples
    --------
    >>> [str(role) for role in pipeline_of(generates=False, compiles=True)]
    ['compile', 'search', 'verify']
    >>> [str(role) for role in pipeline_of(generates=True, compiles=True, tunable=True)]
    ['verify']
    """
    if tunable:
        return (JobRole.VERIFY,)
    wanted = {JobRole.GENERATE: generates, JobRole.COMPILE: compiles}
    return (*(role for role in HELPERS if wanted[role]), *PIPELINE)


def step(
    resource: KernelExperiment,
    facts: ExperimentFacts,
    *,
    now: datetime,
    pipeline: tuple[JobRole, ...] = PIPELINE,
) -> ExperimentStep:
    """Return the next status and actions of an experiment.

    Parameters
    ----------
    resource
        The experiment as stored.
    facts
        All other observations.
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
    case = TrialStep(resource=resource, facts=facts, now=now, pipeline=pipeline, status=status)
    if not case.status.phase.is_terminal:
        case = _going(placed.with_device_time(_with_results(case)))
    case = placed.closed(case)
    if case.status.phase.is_terminal:
        case = replace(case, actions=_cleared(facts.jobs))
        return ExperimentStep(status=case.status, actions=case.actions)
    return ExperimentStep(status=case.status, actions=case.actions, look_again_at=now + _LOOK_AGAIN)


def unable(
    resource: KernelExperiment, facts: ExperimentFacts, error: RetunedError, *, now: datetime
) -> ExperimentStep:
    """End an experiment whose next Job cannot be created: a retry would not change that."""
    case = TrialStep(
        resource=resource, facts=facts, now=now, pipeline=PIPELINE, status=resource.status
    ).to(_P.REFUSED, error.code, str(error))
    case = placed.closed(case)
    return ExperimentStep(status=case.status, actions=_cleared(facts.jobs))


def _cleared(jobs: Sequence[JobFact]) -> tuple[ExperimentAction, ...]:
    """Delete the Jobs of an ended experiment, so that none holds an accelerator."""
    return tuple(DeleteJob(job=job.name) for job in jobs if job.is_live)


def _with_results(case: TrialStep) -> TrialStep:
    """Record which pod's result counts for each Job: the first complete one, permanently."""
    refs = {ref.name: ref for ref in case.status.job_refs}
    for job in case.facts.jobs:
        known = refs.get(job.name)
        if known is None or (known.uid != job.uid and known.result is None and not known.given_up):
            refs[job.name] = JobRef(name=job.name, uid=job.uid, role=job.role, attempt=job.attempt)
        if job.role in HELPERS and job.state is JobState.FAILED:
            refs[job.name] = _given_up(refs[job.name], "job-failed", job.reason)
    for name, ref in refs.items():
        mine = [result for result in case.facts.results if result.job == name]
        if ref.result is None and mine:
            first = min(mine, key=lambda each: (each.at, each.pod_uid))
            refs[name] = ref.model_copy(update={"result": first.pod_uid})
    measured = [ref for ref in refs.values() if ref.role not in HELPERS]
    counted = [result for ref in measured if (result := _result(case, ref)) is not None]
    tried = sum(result.tried for result in counted)
    correct = sum(result.correct for result in counted)
    trials = Trials(total=tried, correct=correct, failed=max(0, tried - correct))
    newest = tuple(sorted(refs.values(), key=lambda ref: (ref.attempt, ref.name)))[-64:]
    return case.having(job_refs=newest, trials=trials)


def _given_up(ref: JobRef, code: str, detail: str) -> JobRef:
    """Return the Job as one that the experiment does without; the first reason stays."""
    if ref.result is not None or ref.given_up:
        return ref
    why = f"{code}: {detail}" if detail else code
    return ref.model_copy(update={"given_up": why[:_LONGEST_WHY]})


def _result(case: TrialStep, ref: JobRef) -> ResultFact | None:
    """Return the result that counts for a Job; None without one, or if it is not visible now."""
    return next(
        (
            each
            for each in case.facts.results
            if each.job == ref.name and each.pod_uid == ref.result
        ),
        None,
    )


def _going(case: TrialStep) -> TrialStep:
    """Advance one step, or end."""
    over = ended(case)
    if over is not None:
        return over
    for role in case.pipeline:
        if role in HELPERS:
            if _is_over(case, role):
                continue
            return _due(case, role)
        result = _done(case, role)
        if result is None:
            return _due(case, role)
        if role is case.pipeline[-1]:
            return _verified(case, result)
        if result.finalists == 0:
            return case.to(_P.NO_IMPROVEMENT, "nothing-found", result.beside)
    return case.to(_P.FAILED, "no-pipeline")


def _done(case: TrialStep, role: JobRole) -> ResultFact | None:
    """Return the result of a role, from any attempt, also if its Job no longer exists."""
    for ref in case.status.job_refs:
        if ref.role is role and ref.result is not None:
            return _result(case, ref)
    return None


def _is_over(case: TrialStep, role: JobRole) -> bool:
    """Whether a Job that only helps has brought a result, or will not."""
    refs = [ref for ref in case.status.job_refs if ref.role is role]
    return _has_searched(case) or any(ref.result is not None or ref.given_up for ref in refs)


def _has_searched(case: TrialStep) -> bool:
    """Whether a search was made: help comes too late after it."""
    return any(ref.role is JobRole.SEARCH for ref in case.status.job_refs)


def _due(case: TrialStep, role: JobRole) -> TrialStep:
    """Drive the one Job that is due; delete others that still exist before."""
    attempt = case.status.preemptions + case.status.lost_results + 1
    job = _job(case, role, attempt)
    stale = [each for each in case.facts.jobs if each.is_live and each is not job]
    if stale:
        deleted = tuple(DeleteJob(job=each.name) for each in stale)
        return case.to(_P.QUEUED, "clearing-away").doing(*deleted)
    if job is not None and job.state is JobState.COMPLETE:
        return _without_result(case, role, job)
    if job is None and _was_made(case, role, attempt):
        return _lost(case, role, "job-gone", detail=f"the Job {role} {attempt} was deleted")
    return _driven(case, role, job, attempt=attempt, held=held_by(case))


def _job(case: TrialStep, role: JobRole, attempt: int) -> JobFact | None:
    return next(
        (job for job in case.facts.jobs if job.role is role and job.attempt == attempt), None
    )


def _driven(
    case: TrialStep, role: JobRole, job: JobFact | None, *, attempt: int, held: str
) -> TrialStep:
    """Create, release, suspend or give up the one Job that is due."""
    if job is not None and job.state is JobState.DISRUPTED:
        case = case.having(preemptions=case.status.preemptions + 1)
        return case.to(_P.PREEMPTED, "preempted").doing(DeleteJob(job=job.name))
    if job is None:
        if case.facts.unplaced is not None:
            return case.to(_P.REFUSED, *case.facts.unplaced)
        if held:
            return case.to(_P.QUEUED, held)
        return case.to(_P.QUEUED, "job-made").doing(CreateJob(role=role, attempt=attempt))
    if held:
        case = case.to(_P.QUEUED, held)
        if job.state in placed.LET_GO:
            return case.doing(SetSuspend(job=job.name, suspend=True))
        return case
    if job.state is JobState.SUSPENDED:
        if case.facts.queued_elsewhere:
            return case.to(_P.QUEUED, "waits-in-queue")
        if placed.rests(case):
            return case
        return case.to(_P.QUEUED, "released").doing(SetSuspend(job=job.name, suspend=False))
    return _let_go(case, role, job)


def _let_go(case: TrialStep, role: JobRole, job: JobFact) -> TrialStep:
    """Return the step with the state of a released Job."""
    if job.state is JobState.WAITING:
        return placed.waited(case, job)
    case = placed.found_room(case)
    if job.state is JobState.STARTING:
        return case.to(_P.QUEUED, placed.STARTING, job.reason)
    if role in HELPERS:  # no accelerator is in use
        return case.to(_P.RUNNING, HELPERS[role])
    return case.to(_working(case, role), "running")


def _working(case: TrialStep, role: JobRole) -> ExperimentPhase:
    return _P.VERIFYING if role is case.pipeline[-1] else _P.RUNNING


def _was_made(case: TrialStep, role: JobRole, attempt: int) -> bool:
    """Whether a Job existed before: it outlived its time, or a person deleted it."""
    return any(ref.role is role and ref.attempt == attempt for ref in case.status.job_refs)


def _lost(case: TrialStep, role: JobRole, reason: str, *, detail: str) -> TrialStep:
    """Create a Job again whose result is unreadable; the loss is not evidence about any variant."""
    if role in HELPERS:
        refs = tuple(
            _given_up(ref, reason, detail) if ref.role is role else ref
            for ref in case.status.job_refs
        )
        return case.having(job_refs=refs).to(_P.QUEUED, reason, detail)
    lost = case.status.lost_results + 1
    case = case.having(lost_results=lost)
    if lost > MAX_LOST_RESULTS:
        trials = case.status.trials.model_copy(update={"without_result": lost})
        return case.having(trials=trials).to(_P.FAILED, "no-result", f"{reason}: {detail}")
    return case.to(_P.QUEUED, reason, detail)


def _without_result(case: TrialStep, role: JobRole, job: JobFact) -> TrialStep:
    """Wait a limited time for the result of a complete Job."""
    gone = dict(case.facts.lost).get(job.name)
    if gone is not None:
        return _lost(case, role, gone, detail=job.name)
    waiting = case.status.reason == "waiting-for-result"
    since = next((c for c in case.status.conditions if c.type == "WaitingForResult"), None)
    if waiting and since is not None and case.now >= since.last_transition_time + RESULT_PATIENCE:
        return _lost(case, role, "results-unread", detail=job.name)
    return _marked(case).to(_working(case, role), "waiting-for-result")


def _marked(case: TrialStep) -> TrialStep:
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


def _verified(case: TrialStep, result: ResultFact) -> TrialStep:
    """Propose the win that the trusted Job proved; no other Job may."""
    if result.winner is None or result.speedup is None:
        return case.to(_P.NO_IMPROVEMENT, "not-proven", result.beside)
    beside = result.beside
    best = Best(digest=result.winner, speedup=result.speedup, result=result.pod_uid)
    case = case.having(best=best)
    if case.facts.proposal is not None:
        return case.having(proposal=case.facts.proposal).to(_P.SUCCEEDED, "proposed", beside)
    if case.facts.refusal is not None:
        detail = "; ".join(filter(None, (case.facts.refusal_detail, beside)))
        return case.to(_P.NO_IMPROVEMENT, case.facts.refusal, detail)
    target = case.facts.target
    assert target is not None, "its absence ends an experiment"
    quarantined = any(
        each.digest == result.winner and case.now < each.until for each in target.status.quarantine
    )
    if quarantined:
        return case.to(_P.NO_IMPROVEMENT, "quarantined", beside)
    return case.to(_P.VERIFYING, "proven", beside).doing(
        Propose(winner=result.winner, result=result.pod_uid)
    )
