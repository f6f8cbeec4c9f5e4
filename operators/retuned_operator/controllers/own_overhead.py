"""Retuned's own cost in a cluster: from what sidecars report to the status of a target.

What a sidecar reports is untrusted: the operator computes each result again from the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from retuned.api.agent import PodOverhead
from retuned.control import gate_facts, own_overhead
from retuned.control.own_overhead import OverheadFact
from retuned.stages.watch.own_overhead import SETTINGS, is_allowed
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict, replay
from retuned_operator.agent_api.reports import PodReports
from retuned_operator.controllers import objects
from retuned_operator.controllers.cluster_view import ClusterView, environment_of_pod
from retuned_operator.controllers.objects import ObservedPod
from retuned_operator.controllers.ports import KubernetesEvent
from retuned_operator.kube.resources import POLICIES, TARGETS
from retuned_operator.schema import TuningTarget, TuningTargetStatus

_NOT_REPORTED = "not-reported"
EVENT = "OwnOverhead"
"""Reason of the Event of a measurement."""


def with_own_overhead(
    status: TuningTargetStatus,
    world: ClusterView,
    target: TuningTarget,
    pods: Sequence[ObservedPod],
    *,
    now: datetime,
) -> TuningTargetStatus:
    """Return the status with what was measured, and with the pods that measure.

    Nothing is measured while a policy of the namespace cannot be read.
    """
    policies = objects.policies(world.caches.list(POLICIES, namespace=target.metadata.namespace))
    allowed = policies is not None and is_allowed(
        [each.policy for each in policies], gate_facts.labels_of(target)
    )
    facts = [_fact(pod, world.reports.of(pod.uid)) for pod in pods]
    entries = own_overhead.observed(status.own_overhead, facts, now=now)
    entries = own_overhead.asked(entries, facts, allowed=allowed)
    return status.model_copy(update={"own_overhead": entries})


def overhead_events(
    target: TuningTarget, before: TuningTargetStatus, after: TuningTargetStatus
) -> tuple[KubernetesEvent, ...]:
    """Return an Event for each measurement that a status has and the one before had not."""
    known = {(each.uid, each.reported) for each in before.own_overhead}
    return tuple(
        KubernetesEvent(
            resource=TARGETS,
            about=target,
            reason=EVENT,
            note=f"{each.name}: {each.sentence} ({each.outcome})",
            warning=each.share < 1.0,
            once=f"{each.uid} {each.reported.isoformat()}",
        )
        for each in after.own_overhead
        if each.reported is not None and (each.uid, each.reported) not in known
    )


def _fact(pod: ObservedPod, said: PodReports | None) -> OverheadFact:
    environment = environment_of_pod(said)
    post = said.proofs if said is not None else None
    posted = post.overhead if post is not None else None
    unavailable = _NOT_REPORTED if post is None and environment is not None else ""
    if post is not None and post.unavailable and not post.temporary:
        unavailable = post.unavailable
    return OverheadFact(
        name=pod.name,
        uid=pod.uid,
        ready=pod.ready,
        environment=environment,
        unavailable=unavailable,
        reported=posted.at if posted is not None else None,
        report=_judged(posted) if posted is not None else None,
        engine=posted.engine if posted is not None else "",
    )


def _judged(posted: PodOverhead) -> ProofReport:
    """Return the result that follows from a pod's pairs."""
    try:
        return replay(posted.claim, SETTINGS)
    except ValueError:
        return ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.CONTRADICTED)
