"""TuningTargets: which servers there are, and what their sidecars say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from retuned.agent_wire import Hello
from retuned.contract import Digest, digest_of
from retuned_operator.agent.reports import FRESH, PodSaid
from retuned_operator.controllers.acting import Acting
from retuned_operator.controllers.proposals import NOT_KNOWN_S
from retuned_operator.controllers.reading import PodSeen
from retuned_operator.controllers.swaps import World, pods_of, target_of
from retuned_operator.controllers.telling import condition
from retuned_operator.crds import TuningTarget, TuningTargetStatus
from retuned_operator.crds.values import with_condition
from retuned_operator.runtime.resources import TARGETS

LOOK_AGAIN_S = 60.0
"""Sidecars fall silent without an event, seconds."""


class Targets:
    """Controller; its keys are targets, ``namespace/name``.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    """

    def __init__(self, world: World, acting: Acting) -> None:
        self._world = world
        self._acting = acting

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
        heard = [self._world.reports.of(pod.uid) for pod in pods]
        status = observed(target, pods, heard, now=self._world.clock.now())
        self._acting.status(TARGETS, target, status)
        return LOOK_AGAIN_S if pods else None


def observed(
    target: TuningTarget,
    pods: Sequence[PodSeen],
    heard: Sequence[PodSaid | None],
    *,
    now: datetime,
) -> TuningTargetStatus:
    """Return the status of a target from what is seen; what swaps have written in it stays.

    Parameters
    ----------
    pods
        Its pods with a sidecar.
    heard
        What each of them said last, in the same order.
    """
    said = [each for each in heard if each is not None]
    fresh = [each for each in said if now - each.heard_at <= FRESH]
    worlds = {environment_of(each.hello) for each in fresh}
    sampled = max(
        ((each.profiled_at, each.kernels) for each in said if each.profiled_at), default=None
    )
    status = target.status
    ready = bool(fresh) and len(worlds) == 1 and None not in worlds
    why = "reporting" if ready else "environments-differ" if len(worlds) > 1 else "not-reporting"
    known = condition(
        "Ready",
        ready,
        reason=why,
        message=f"{len(fresh)} of {len(pods)} pods report",
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
