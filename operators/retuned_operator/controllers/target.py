"""TuningTargets: which servers there are, and what their sidecars say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from zlib import crc32

from retuned.api.agent import Hello
from retuned.api.target import TunableState
from retuned.api.values import with_condition
from retuned.contract import Digest, digest_of
from retuned_operator.agent_api.reports import FRESH, PodReports
from retuned_operator.controllers.cluster_view import ClusterView, pods_of, target_of
from retuned_operator.controllers.conditions import condition
from retuned_operator.controllers.job_requests import no_place
from retuned_operator.controllers.lessons import with_lessons
from retuned_operator.controllers.objects import ObservedPod
from retuned_operator.controllers.own_overhead import overhead_events, with_own_overhead
from retuned_operator.controllers.ports import Tunables
from retuned_operator.controllers.proposal import NOT_KNOWN_S
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import TARGETS
from retuned_operator.manifests import JobSettings
from retuned_operator.schema import TuningTarget, TuningTargetStatus

LOOK_AGAIN_S = 60.0
"""Sidecars fall silent without an event: the longest time between looks, seconds."""


class Targets:
    """Controller; its keys are targets, ``namespace/name``.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    jobs
        Which accelerators experiments can be placed on.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter, *, jobs: JobSettings) -> None:
        self._world = world
        self._acting = acting
        self._jobs = jobs

    def reconcile(self, key: str) -> float | None:
        """Write what is seen of a target; return when to look again, seconds.

        Raises
        ------
        RetunedError
            If it could not be read, or the write was refused.
        """
        target = target_of(self._world, key)
        pods = None if target is None else pods_of(self._world, target)
        if target is None:
            return None
        if pods is None:
            return NOT_KNOWN_S
        status = self._status(target, pods)
        self._acting.status(TARGETS, target, status)
        self._acting.say(*overhead_events(target, target.status, status))
        return again_s(key) if pods else None

    def _status(self, target: TuningTarget, pods: Sequence[ObservedPod]) -> TuningTargetStatus:
        """Return the status of a target with all that is seen of it now."""
        world, now = self._world, self._world.clock.now()
        heard = [world.reports.of(pod.uid) for pod in pods]
        status = observed(target, pods, heard, now=now)
        status = with_place(target, status, no_place(target, self._jobs), now=now)
        status = with_tunables(status, world.tunables, target=target.full_name)
        status = with_lessons(status, world, target)
        return with_own_overhead(status, world, target, pods, now=now)


def again_s(key: str) -> float:
    """Return when to reconcile a target again: targets that started together get different times.

    Examples
    --------
    >>> [round(again_s(f"serving/t{n}"), 1) for n in range(3)]
    [52.1, 45.9, 53.8]
    """
    return LOOK_AGAIN_S * (0.75 + 0.25 * crc32(key.encode()) / 2**32)


def observed(
    target: TuningTarget,
    pods: Sequence[ObservedPod],
    heard: Sequence[PodReports | None],
    *,
    now: datetime,
) -> TuningTargetStatus:
    """Return the status of a target from what is seen; what swaps have written in it stays.

    Parameters
    ----------
    pods
        Its pods with a sidecar.
    heard
        The last reports of each, in the same order.
    """
    said = [each for each in heard if each is not None]
    fresh = [each for each in said if now - each.heard_at <= FRESH]
    worlds = {environment_of(each.hello) for each in fresh}
    sampled = max(
        ((each.profiled_at, each.kernels) for each in said if each.profiled_at), default=None
    )
    status = target.status
    ready, reason, message = readiness(fresh, pods=len(pods))
    known = condition(
        "Ready",
        ready,
        reason=reason,
        message=message,
        generation=target.metadata.generation,
        now=now,
    )
    return status.model_copy(
        update={
            "observed_generation": target.metadata.generation,
            "pods": len(pods),
            "reporting_pods": len(fresh),
            "sampled_kernels": sampled[1] if sampled else status.sampled_kernels,
            "last_sample": sampled[0] if sampled else status.last_sample,
            "environment": next(iter(worlds)) if ready else None,
            "quarantine": tuple(each for each in status.quarantine if now < each.until),
            "conditions": with_condition(status.conditions, known),
        }
    )


def with_place(
    target: TuningTarget, status: TuningTargetStatus, why: tuple[str, str] | None, *, now: datetime
) -> TuningTargetStatus:
    """Return the status with whether experiments for a target can be placed.

    Parameters
    ----------
    why
        Why they cannot, stable code and a sentence; None where they can.
    """
    reason, message = why or ("placeable", "")
    known = condition(
        "ExperimentsPlaceable",
        why is None,
        reason=reason,
        message=message,
        generation=target.metadata.generation,
        now=now,
    )
    return status.model_copy(update={"conditions": with_condition(status.conditions, known)})


def with_tunables(
    status: TuningTargetStatus, tunables: Tunables, *, target: str
) -> TuningTargetStatus:
    """Return the status with the tunables that pods posted, and why none is tried.

    A detail has numbers that change with each post, so it stays while its reason does.
    """
    known = {each.name: each for each in status.tunables}
    untried = tunables.untried(target)
    found = []
    for name in sorted(tunables.of(target)):
        answer, before = untried.get(name), known.get(name)
        reason = "" if answer is None else str(answer.reason)
        detail = "" if answer is None else answer.detail[:1000]
        if before is not None and before.reason == reason:
            detail = before.detail
        found.append(TunableState(name=name, reason=reason, detail=detail))
    return status.model_copy(update={"tunables": tuple(found)})


def readiness(fresh: Sequence[PodReports], *, pods: int) -> tuple[bool, str, str]:
    """Return whether a target can be looked after now, why, and a sentence.

    Parameters
    ----------
    fresh
        Reports of the pods that reported recently.
    pods
        How many there are.

    Examples
    --------
    >>> readiness([], pods=2)
    (False, 'not-reporting', '0 of 2 pods report')
    >>> readiness([], pods=0)
    (False, 'no-pods', 'no pod with a sidecar carries the labels of the selector')
    """
    if not pods:
        return False, "no-pods", "no pod with a sidecar carries the labels of the selector"
    count = f"{len(fresh)} of {pods} pods report"
    if not fresh:
        return False, "not-reporting", count
    silent = sorted(e.pod.name for e in fresh if e.hello is None or not e.hello.environments)
    if silent:
        message = (
            f"{count}; no process of the server has joined in {_some(silent)}. A process joins "
            "before its first launch of a kernel; one that cannot join says so in its log"
        )
        return False, "server-silent", message
    apart = sorted(each.pod.name for each in fresh if environment_of(each.hello) is None)
    if apart:
        message = f"{count}; processes of one server have different environments in {_some(apart)}"
        return False, "environments-differ", message
    if len({environment_of(each.hello) for each in fresh}) > 1:
        return False, "environments-differ", f"{count}; they run on different things"
    return True, "reporting", count


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def environment_of(hello: Hello | None) -> Digest | None:
    """Return the digest of what a server runs on; None while its processes differ or do not say.

    Examples
    --------
    >>> environment_of(None) is None
    True
    """
    processes = hello.environments if hello is not None else ()
    worlds = {digest_of(each.model_dump(mode="json", exclude={"process"})) for each in processes}
    return worlds.pop() if len(worlds) == 1 else None
