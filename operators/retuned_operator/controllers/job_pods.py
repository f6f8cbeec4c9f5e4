"""Jobs of experiments and their pods to what the state machine looks at. Pure.

Whatever a pod ran may have written its messages: they are shortened, made harmless and shown to
people. Nothing is decided by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from retuned_operator.controllers import reading
from retuned_operator.crds import JobRole
from retuned_operator.machine import JobFact, JobState
from retuned_operator.manifests.names import ATTEMPT, ROLE
from retuned_operator.runtime.errors import printable

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
    """Return a Job of an experiment; None where it is none, or is on its way out."""
    metadata, spec, status = (reading.part(body, key) for key in ("metadata", "spec", "status"))
    labels = reading.labels_of(body)
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
    conditions = {each.get("type"): each for each in reading.parts(status, "conditions")}
    true = {name for name, each in conditions.items() if each.get("status") == "True"}
    if "Complete" in true:
        return JobState.COMPLETE, ""
    for name in ("Failed", "FailureTarget"):
        if name in true:
            return JobState.FAILED, str(conditions[name].get("reason", ""))[:128]
    return (JobState.SUSPENDED if spec.get("suspend") else JobState.RUNNING), ""


def with_disruption(fact: JobFact, pods: Iterable[Mapping[str, Any]]) -> JobFact:
    """Return a Job with what happened to its pods.

    A pod that was evicted or preempted, or whose node went, does not fail its Job; that it was
    taken away is said by the pod alone.
    """
    taken = any(
        each.get("type") == "DisruptionTarget" and each.get("status") == "True"
        for body in pods
        for each in reading.parts(reading.part(body, "status"), "conditions")
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
    status = reading.part(body, "status")
    for each in reading.parts(status, "containerStatuses"):
        ended = reading.part(reading.part(each, "state"), "terminated")
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
    worked = any(reading.part(body, "status").get("phase") in _WORKED for body in pods)
    if fact.state is not JobState.RUNNING or worked:
        return fact
    has_node = any(reading.part(body, "spec").get("nodeName") for body in pods)
    state = JobState.STARTING if has_node else JobState.WAITING
    said = dict.fromkeys(each for body in pods if (each := _obstacle(body)))
    return replace(fact, state=state, reason="; ".join(said)[:_MAX_WHY])


def _states(body: Mapping[str, Any], container: str) -> list[Mapping[str, Any]]:
    """Return since when the container works, or from when to when it did."""
    found = [
        reading.part(each, "state")
        for each in reading.parts(reading.part(body, "status"), "containerStatuses")
        if each.get("name") == container
    ]
    return [reading.part(each, key) for each in found for key in ("running", "terminated")]


def _moments(states: Sequence[Mapping[str, Any]], key: str) -> list[datetime]:
    return [found for each in states if (found := reading.moment(each.get(key))) is not None]


def _obstacle(body: Mapping[str, Any]) -> str:
    """Return why a pod does not run: what the scheduler says, or what its node waits for."""
    status = reading.part(body, "status")
    for each in reading.parts(status, "conditions"):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            words = [str(each[key]) for key in ("reason", "message") if each.get(key)]
            return printable(": ".join(words))[:_MAX_WHY]
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in reading.parts(status, key):
            waits = reading.part(reading.part(each, "state"), "waiting")
            words = [str(waits[name]) for name in ("reason", "message") if waits.get(name)]
            if words:
                return printable(": ".join(words))[:_MAX_WHY]
    return ""
