"""KernelTuningPolicies: whether they can be used, and whether swaps may start under them now."""

from __future__ import annotations

from datetime import datetime

from retuned.api.policy import EffectiveWindows
from retuned.api.values import with_condition
from retuned.errors import UnreadableInput
from retuned.stages.gate import judge_windows
from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.conditions import condition
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import POLICIES, Obj
from retuned_operator.schema import PolicyObject, PolicyStatus, read

MAX_WAIT_S = 3600.0
"""Longest time until maintenance windows are checked again, seconds."""


class Policies:
    """Controller; its keys are policies, ``namespace/name``.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter) -> None:
        self._world = world
        self._acting = acting

    def reconcile(self, key: str) -> float | None:
        """Write what a policy comes to now; return when that changes, seconds.

        Raises
        ------
        ApiError
            If the write was refused.
        """
        body = self._world.caches.get(POLICIES, key)
        now = self._world.clock.now()
        if body is None:
            return None
        try:
            policy = read(PolicyObject, body)
        except UnreadableInput as error:
            self._acting.raw_status(POLICIES, body, refused(body, str(error), now=now))
            return None
        status = judged(policy, now=now)
        self._acting.status(POLICIES, policy, status)
        return until_change_s(status, now=now)


def judged(policy: PolicyObject, *, now: datetime) -> PolicyStatus:
    """Return the status of a policy that can be used."""
    stage, generation = policy.stage_policy(), policy.metadata.generation
    windows = judge_windows(stage.spec.windows, now=now)
    ready = condition("Ready", True, reason="usable", message="", generation=generation, now=now)
    return PolicyStatus(
        observed_generation=generation,
        digest=stage.digest,
        effective_windows=EffectiveWindows(
            open=windows.allowed, next_change=windows.next_change_at, why=windows.why[:2048]
        ),
        conditions=with_condition(policy.status.conditions, ready),
    )


def refused(body: Obj, why: str, *, now: datetime) -> Obj:
    """Return the status of a policy that cannot be used: nothing moves under it."""
    known = body.get("status", {}).get("conditions") or ()
    generation = int(body["metadata"].get("generation", 0))
    old: Obj = next((each for each in known if each.get("type") == "Ready"), {})
    ready = condition(
        "Ready", False, reason="unreadable", message=why, generation=generation, now=now
    ).model_dump(mode="json", by_alias=True)
    if old.get("status") == ready["status"]:
        ready["lastTransitionTime"] = old.get("lastTransitionTime", ready["lastTransitionTime"])
    return {"observedGeneration": generation, "conditions": [ready]}


def until_change_s(status: PolicyStatus, *, now: datetime) -> float | None:
    """Return when the windows change, seconds; None where no change is foreseen."""
    windows = status.effective_windows
    if windows is None or windows.next_change is None:
        return None
    return min(MAX_WAIT_S, max(1.0, (windows.next_change - now).total_seconds()))
