"""Input of a step of an experiment, and the outcome of a win.

Jobs of experiments and their pods are converted to facts of the state machine. Pure.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from retuned.api.target import Vendor
from retuned.contract import Digest
from retuned.control import ExperimentFacts, JobFact, JobState, PolicyFact, ResultFact, gate_facts
from retuned.control import jobs as placed
from retuned.errors import TemporaryError
from retuned.stages.gate import under
from retuned.stages.proposal import (
    Proposal,
    Refusal,
    RefusalReason,
    is_tunable,
    propose,
    share_in,
)
from retuned_operator.controllers import lessons, objects, tables
from retuned_operator.controllers.cluster_view import (
    ClusterView,
    baseline,
    pods_of,
    servers_of,
    target_of,
)
from retuned_operator.controllers.ports import BY_BUDGET, BY_EXPERIMENT, BY_LABEL, BY_TARGET
from retuned_operator.kube.errors import printable
from retuned_operator.kube.resources import (
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    Obj,
)
from retuned_operator.manifests.jobs import RUNNER
from retuned_operator.manifests.names import ATTEMPT, EXPERIMENT_UID, ROLE, proposal_name
from retuned_operator.schema import (
    ExperimentPhase,
    JobRole,
    KernelExperiment,
    SwapProposal,
    TuningTarget,
)

_MAX_WHY = 1024
"""Characters of why a Job failed, or does not run."""
_WORKED = ("Running", "Succeeded", "Failed")


def with_pods(fact: JobFact, pods: Sequence[Mapping[str, Any]], *, container: str) -> JobFact:
    """Return a Job with what its pods say: taken away, waiting, running since when, or why failed.

    Parameters
    ----------
    pods
        Those that the Job controls.
    container
        That does the work.
    """
    fact = with_disruption(fact, pods)
    fact = with_place(fact, pods, container=container)
    return with_why(fact, pods, container=container)


def job_fact(body: Mapping[str, Any]) -> JobFact | None:
    """Return a Job of an experiment; None for another Job, or one that is being deleted."""
    metadata, spec, status = (objects.part(body, key) for key in ("metadata", "spec", "status"))
    labels = objects.labels_of(body)
    role, attempt = labels.get(ROLE, ""), labels.get(ATTEMPT, "")
    known = role in set(JobRole) and attempt.isdecimal() and len(attempt) < 10
    if not known or metadata.get("deletionTimestamp") or not metadata.get("uid"):
        return None
    state, reason = _state_of(spec, status)
    return JobFact(
        name=str(metadata.get("name", "")),
        uid=str(metadata["uid"]),
        role=JobRole(role),
        attempt=int(attempt),
        state=state,
        reason=reason,
    )


def _state_of(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[JobState, str]:
    conditions = {each.get("type"): each for each in objects.parts(status, "conditions")}
    true = {name for name, each in conditions.items() if each.get("status") == "True"}
    if "Complete" in true:
        return JobState.COMPLETE, ""
    for name in ("Failed", "FailureTarget"):
        if name in true:
            return JobState.FAILED, str(conditions[name].get("reason", ""))[:128]
    return (JobState.SUSPENDED if spec.get("suspend") else JobState.RUNNING), ""


def with_disruption(fact: JobFact, pods: Iterable[Mapping[str, Any]]) -> JobFact:
    """Return a Job with what happened to its pods.

    A pod that was evicted or preempted, or whose node went away, does not fail its Job. Only the
    condition ``DisruptionTarget`` of the pod shows it.
    """
    taken = any(
        each.get("type") == "DisruptionTarget" and each.get("status") == "True"
        for body in pods
        for each in objects.parts(objects.part(body, "status"), "conditions")
    )
    going = fact.state in (JobState.RUNNING, JobState.SUSPENDED)
    return replace(fact, state=JobState.DISRUPTED) if taken and going else fact


def with_why(fact: JobFact, pods: Iterable[Mapping[str, Any]], *, container: str) -> JobFact:
    """Return a Job that failed with what its pods say of that, for people.

    Whatever the container runs may have written the message: it is shortened, made harmless, and
    nothing is decided by it.
    """
    if fact.state is not JobState.FAILED:
        return fact
    said = dict.fromkeys(each for body in pods if (each := _why(body, container)))
    return replace(fact, reason="; ".join(filter(None, (fact.reason, *said)))[:_MAX_WHY])


def _why(body: Mapping[str, Any], container: str) -> str:
    status = objects.part(body, "status")
    for each in objects.parts(status, "containerStatuses"):
        ended = objects.part(objects.part(each, "state"), "terminated")
        if each.get("name") != container or not ended.get("exitCode"):
            continue
        try:
            told = json.loads(str(ended.get("message", "")))
        except (ValueError, RecursionError):
            told = None
        told = told if isinstance(told, Mapping) else {}
        words = [str(status["reason"])] if status.get("reason") else []
        words += [f"{ended.get('reason', 'Error')} with code {ended['exitCode']}"]
        words += [str(told[key]) for key in ("code", "message") if told.get(key)]
        return printable(": ".join(words))[:_MAX_WHY]
    return printable(": ".join(str(status[key]) for key in ("reason", "message") if key in status))


def with_place(fact: JobFact, pods: Sequence[Mapping[str, Any]], *, container: str) -> JobFact:
    """Return a Job that was let go with where its pod is, and when the pod worked.

    A pod that waits for a node, or for its image there, does not run: Kubernetes alone knows that.
    """
    states = [state for body in pods for state in _states(body, container)]
    began = _moments(states, "startedAt")
    ended = _moments([state for state in states if "finishedAt" in state], "finishedAt")
    fact = replace(fact, began_at=max(began, default=None), ended_at=max(ended, default=None))
    worked = any(objects.part(body, "status").get("phase") in _WORKED for body in pods)
    if fact.state is not JobState.RUNNING or worked:
        return fact
    has_node = any(objects.part(body, "spec").get("nodeName") for body in pods)
    state = JobState.STARTING if has_node else JobState.WAITING
    said = dict.fromkeys(each for body in pods if (each := _obstacle(body)))
    return replace(fact, state=state, reason="; ".join(said)[:_MAX_WHY])


def _states(body: Mapping[str, Any], container: str) -> list[Mapping[str, Any]]:
    """Return since when the container works, or from when to when it did."""
    found = [
        objects.part(each, "state")
        for each in objects.parts(objects.part(body, "status"), "containerStatuses")
        if each.get("name") == container
    ]
    return [objects.part(each, key) for each in found for key in ("running", "terminated")]


def _moments(states: Sequence[Mapping[str, Any]], key: str) -> list[datetime]:
    return [found for each in states if (found := objects.moment(each.get(key))) is not None]


def _obstacle(body: Mapping[str, Any]) -> str:
    """Return why a pod does not run: the scheduler's message, or what its node waits for."""
    status = objects.part(body, "status")
    for each in objects.parts(status, "conditions"):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            words = [str(each[key]) for key in ("reason", "message") if each.get(key)]
            return printable(": ".join(words))[:_MAX_WHY]
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in objects.parts(status, key):
            waits = objects.part(objects.part(each, "state"), "waiting")
            words = [str(waits[name]) for name in ("reason", "message") if waits.get(name)]
            if words:
                return printable(": ".join(words))[:_MAX_WHY]
    return ""


DAY = timedelta(days=1)
PROPOSAL_TTL = timedelta(days=3)
"""How long a proposal may wait, where its gate does not end it before."""
_HOLDING = (ExperimentPhase.RUNNING, ExperimentPhase.VERIFYING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinOutcome:
    """What became of a win."""

    proposal: Proposal | None = None
    """Proposal to write; None without one."""
    refusal: str | None = None
    """Why there is none, a stable code; None with a proposal, or if none was requested."""
    detail: str = ""
    """The refusal in one sentence; empty if the code is enough."""
    name: str | None = None
    """Name of the SwapProposal; None before it exists."""


def facts_of(
    world: ClusterView, experiment: KernelExperiment, *, namespace: str, queued: bool
) -> ExperimentFacts | None:
    """Return the complete input of a step of an experiment; None while a part is unknown.

    Parameters
    ----------
    namespace
        Where its pods run.
    queued
        Whether a queue releases its Jobs.

    Raises
    ------
    TemporaryError
        If the store cannot be read now.
    UnreadableInput
        If the target cannot be read.
    """
    metadata, spec = experiment.metadata, experiment.spec
    key = f"{metadata.namespace}/{spec.target_ref.name}"
    jobs = jobs_of(world, experiment, namespace=namespace)
    made = made_for(world, experiment)
    target = target_of(world, key)
    policies = objects.policies(world.caches.list(POLICIES, namespace=metadata.namespace))
    rivals = _rivals(world, experiment, chosen_for(experiment, policies, target))
    if jobs is None or rivals is None or made is None:
        return None
    results = tuple(world.ledger.results(experiment))
    now = world.clock.now()
    weighed = weigh_again(world, experiment, target, made, results=results, now=now)
    weighed = _become(experiment, made, weighed, target)
    return ExperimentFacts(
        jobs=jobs,
        results=results,
        lost=tuple(world.ledger.lost(experiment).items()),
        target=target,
        policies=policies,
        freezes=objects.freezes(world.caches.list(FREEZES)),
        running_experiments=sum(_is_before(experiment, each) for each in rivals),
        gpu_hours_today=sum(hours_of(each, now=now) for each in (*rivals, experiment)),
        live_baseline=None if target is None else baseline(world, target, spec.kernel.name),
        slo_firing=None if target is None else world.signals.slo_firing(target),
        queued_elsewhere=queued,
        proposal=weighed.name,
        refusal=weighed.refusal,
        refusal_detail=weighed.detail,
    )


def made_for(world: ClusterView, experiment: KernelExperiment) -> Sequence[Obj] | None:
    """Return all proposals for an experiment's target; None while they are not known."""
    key = f"{experiment.metadata.namespace}/{experiment.spec.target_ref.name}"
    return world.caches.by(PROPOSALS, BY_TARGET, key)


def arch_of(world: ClusterView, target: TuningTarget) -> str:
    """Return the device or CPU that the servers of a target report; empty if unknown or mixed."""
    pods = pods_of(world, target) or ()
    cpu = target.spec.gpu.vendor is Vendor.CPU
    said = {each.cpu if cpu else each.device for each in servers_of(world, pods)}
    return said.pop() if len(said) == 1 else ""


def jobs_of(
    world: ClusterView, experiment: KernelExperiment, *, namespace: str
) -> tuple[JobFact, ...] | None:
    """Return the Jobs of an experiment; None while they are not known."""
    uid = experiment.metadata.uid
    bodies = world.caches.by(JOBS, BY_EXPERIMENT, uid)
    pods = world.caches.by(PODS, BY_LABEL, f"{namespace}/{EXPERIMENT_UID}={uid}")
    if bodies is None or pods is None:
        return None
    found = []
    for body in bodies:
        fact = job_fact(body)
        mine = [each for each in pods if objects.owner_uid(each) == body["metadata"].get("uid")]
        if fact is not None:
            found.append(with_pods(fact, mine, container=RUNNER))
    return tuple(found)


def _rivals(
    world: ClusterView, experiment: KernelExperiment, chosen: PolicyFact | None
) -> tuple[KernelExperiment, ...] | None:
    """Return the other experiments that use the same budget now or did so in the last day.

    The policy that allowed an experiment is the one whose budget it uses.
    """
    name = chosen.policy.metadata.name if chosen else experiment.spec.policy_ref.name
    today = world.clock.now().astimezone(UTC).date()
    bodies: list[Obj] = []
    for word in ("open", str(today), str(today - DAY)):
        word = f"{experiment.metadata.namespace}/{name}@{word}"
        found = world.caches.by(EXPERIMENTS, BY_BUDGET, word)
        if found is None:
            return None
        bodies += found
    read, _ = objects.all_of(KernelExperiment, bodies)
    return tuple(each for each in read if each.metadata.uid != experiment.metadata.uid)


def chosen_for(
    experiment: KernelExperiment,
    policies: tuple[PolicyFact, ...] | None,
    target: TuningTarget | None,
) -> PolicyFact | None:
    """Return the policy that decides about an experiment; None where none does."""
    if policies is None or target is None:
        return None
    kernel = experiment.spec.kernel.name
    return gate_facts.choose(policies, kernel, labels=gate_facts.labels_of(target))[0]


def _is_before(experiment: KernelExperiment, rival: KernelExperiment) -> bool:
    """Whether a rival uses the budget first: who has begun comes to its end before others begin."""
    status = rival.status
    waits = status.phase is ExperimentPhase.QUEUED and _has_begun(rival)
    waits = waits and status.reason != placed.NO_ROOM  # it made way
    return _holds(rival) or (waits and not _has_begun(experiment))


def _has_begun(experiment: KernelExperiment) -> bool:
    """Whether a Job of an experiment has run."""
    status = experiment.status
    return status.started_at is not None or any(ref.result for ref in status.job_refs)


def _holds(experiment: KernelExperiment) -> bool:
    """Whether an experiment holds an accelerator, or is about to."""
    status = experiment.status
    return status.phase in _HOLDING or (
        status.phase is ExperimentPhase.QUEUED and status.reason in objects.LET_GO
    )


def hours_of(experiment: KernelExperiment, *, now: datetime) -> float:
    """Return the device time of an experiment in the last day, hours: what ran, no waiting."""
    return placed.device_seconds(experiment.status.device_time, since=now - DAY, now=now) / 3600.0


def deadline_s(experiment: KernelExperiment, chosen: PolicyFact | None) -> int:
    """Return how long a Job may run, seconds: the search, and one more trial at its worst."""
    trial = (
        chosen.policy.spec.experiments.budget.trial_deadline if chosen else timedelta(minutes=15)
    )
    seconds = experiment.spec.budget.max_seconds + trial.total_seconds()
    return max(60, min(86_400, int(seconds)))


def weigh(
    world: ClusterView,
    experiment: KernelExperiment,
    target: TuningTarget | None,
    *,
    results: Sequence[ResultFact],
    now: datetime,
    attempt: int = 1,
) -> WinOutcome:
    """Ask stage 7 about what the trusted Job proved; `attempt` counts proposals of this win.

    Raises
    ------
    TemporaryError
        If its evidence cannot be read now.
    """
    won = winner_of(experiment, results)
    if won is None or target is None:
        return WinOutcome()
    win = world.ledger.win(experiment, job=won.job, pod_uid=won.pod_uid)
    if win is None:
        return WinOutcome(refusal="evidence-doubtful")
    live = baseline(world, target, experiment.spec.kernel.name)
    if live is None:
        raise TemporaryError("the kernel that runs in the slot is unknown", delay_s=10.0)
    learned = lessons.against(world, experiment, target, win)
    if learned is not None:
        return WinOutcome(refusal=str(learned.reason), detail=learned.detail)
    kernel = experiment.spec.kernel.name
    entry = next((e for e in target.status.active_kernels if e.kernel == kernel), None)
    answer = propose(
        win.verdict,
        plan=experiment.spec.stage_plan(),
        share=share_in(world.ledger.belief(experiment.spec.hypothesis), win.verdict),
        target=target.full_name,
        now=now,
        ttl=PROPOSAL_TTL,
        quarantined=_quarantined(world, target, now=now),
        live_baseline=live,
        # a new table carries the rules of the one in force
        live_guard=entry.guard if entry and not is_tunable(kernel) else None,
        trust=win.trust,
        first_swap=entry is None,
        attempt=attempt,
    )
    if isinstance(answer, Refusal):
        return WinOutcome(refusal=str(answer.reason))
    known = world.caches.list(POLICIES, namespace=experiment.metadata.namespace)
    chosen = chosen_for(experiment, objects.policies(known), target)
    if is_tunable(kernel):
        tabled = tables.with_table(world, win, answer, target=target, chosen=chosen)
        if isinstance(tabled, str):
            return WinOutcome(refusal=tabled)
        answer = tabled
    if chosen is None:
        return WinOutcome(proposal=answer)
    env = gate_facts.labels_of(target).get("env", "")
    return WinOutcome(proposal=under(answer, chosen.policy, env=env))


def weigh_again(
    world: ClusterView,
    experiment: KernelExperiment,
    target: TuningTarget | None,
    made: Sequence[Obj],
    *,
    results: Sequence[ResultFact],
    now: datetime,
) -> WinOutcome:
    """Weigh a win as the next attempt after proposals whose lessons do not hold any more.

    Parameters
    ----------
    made
        All proposals for the target.

    Raises
    ------
    TemporaryError
        As `weigh`.
    """
    named = {str(body.get("metadata", {}).get("name", "")): body for body in made}
    for attempt in itertools.count(1):
        weighed = weigh(world, experiment, target, results=results, now=now, attempt=attempt)
        if weighed.proposal is None or target is None:
            return weighed
        name = proposal_name(weighed.proposal.id, target_uid=target.metadata.uid)
        found, _ = objects.all_of(SwapProposal, [named[name]] if name in named else [])
        if not any(lessons.had_a_lesson(each) for each in found):
            return weighed
    raise AssertionError("counting does not end")


def _quarantined(world: ClusterView, target: TuningTarget, *, now: datetime) -> set[Digest]:
    """Return the variants that are quarantined; of a table, the variant that it was made from."""
    named = {each.digest for each in target.status.quarantine if now < each.until}
    made = (world.ledger.table(digest) for digest in named)
    return named | {each.solution for each in made if each is not None}


def winner_of(experiment: KernelExperiment, results: Sequence[ResultFact]) -> ResultFact | None:
    """Return the result that counts of the trusted Job, if it has a winner."""
    refs = {
        (ref.name, ref.result)
        for ref in experiment.status.job_refs
        if ref.role is JobRole.VERIFY and ref.result is not None
    }
    mine = (each for each in results if (each.job, each.pod_uid) in refs)
    return next((each for each in mine if each.winner is not None), None)


def _become(
    experiment: KernelExperiment,
    made: Sequence[Obj],
    weighed: WinOutcome,
    target: TuningTarget | None,
) -> WinOutcome:
    """Return which proposal the win has become; one that was decided on before is a refusal."""
    mine = {
        name: body
        for body in made
        if (name := str(body.get("metadata", {}).get("name", "")))
        and body.get("spec", {}).get("experimentRef") == experiment.metadata.name
        and body.get("spec", {}).get("plan") == experiment.spec.plan
    }
    if mine:
        return WinOutcome(name=min(mine))
    if weighed.proposal is None or target is None:
        return weighed
    name = proposal_name(weighed.proposal.id, target_uid=target.metadata.uid)
    if any(body.get("metadata", {}).get("name") == name for body in made):
        return WinOutcome(refusal=str(RefusalReason.ALREADY_DECIDED))
    return weighed
