"""Input of a step of a proposal, read from the caches and from reports of sidecars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from retuned.api.agent import environment_digest
from retuned.api.proposal import LiveProofStatus, PodOrder, PodState, ProposalPhase
from retuned.contract import Digest
from retuned.control import (
    MeasuredFact,
    PodFact,
    RolloutFacts,
    attributions,
    gate_facts,
    sentinels,
    waves,
)
from retuned.control.analysis import Compared
from retuned.control.facts import PolicyFact
from retuned.control.live_proofs import measured, observed
from retuned.errors import TemporaryError
from retuned.ports import Clock
from retuned.stages.gate import EndToEndRule, LiveProof, limits_of
from retuned.stages.hypothesis import NotTried
from retuned.stages.proposal import is_tunable
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import Consequence
from retuned_operator.agent_api.reports import PodReports, held_fact, pod_fact
from retuned_operator.controllers import live_proofs, objects
from retuned_operator.controllers.objects import ObservedPod
from retuned_operator.controllers.ports import (
    BY_LABEL,
    BY_PROPOSAL,
    BY_TARGET,
    Caches,
    EventSubject,
    Kernels,
    Ledger,
    NoTunables,
    Owners,
    Reports,
    Signals,
    Tunables,
)
from retuned_operator.kube.resources import (
    DECISIONS,
    FREEZES,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
)
from retuned_operator.schema import SwapProposal, TuningTarget, read

_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything that is observed, by way of ports."""

    caches: Caches
    """Objects of the API server."""
    reports: Reports
    """Reports of sidecars."""
    signals: Signals
    """Metrics of the monitoring system."""
    ledger: Ledger
    """The operator's store."""
    kernels: Kernels
    """The catalog."""
    clock: Clock
    """Time."""
    environment: str = ""
    """Value of the label ``env`` of targets that have none."""
    generators: tuple[str, ...] = ("search",)
    """Who proposes variants of kernels that have a reference."""
    tunables: Tunables = field(default_factory=NoTunables)
    """Tunables of servers."""
    owners: Owners | None = None
    """Workloads of server pods; None makes no canary replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """One target with all its proposals, as they are at one moment."""

    target: TuningTarget | None
    """The servers; None if the target does not exist."""
    proposals: tuple[SwapProposal, ...]
    """Those that can be read, oldest first."""
    unreadable: tuple[str, ...]
    """Why others cannot be read; any of them may be under way."""
    pods: tuple[ObservedPod, ...]
    """Server pods with a sidecar."""


def rollouts_of(world: ClusterView, key: str) -> Rollouts | None:
    """Return a target with its proposals; None while that is not known.

    Raises
    ------
    UnreadableInput
        If the target itself cannot be read.
    """
    bodies = world.caches.by(PROPOSALS, BY_TARGET, key)
    target = target_of(world, key)
    pods = () if target is None else pods_of(world, target)
    if bodies is None or pods is None or not world.caches.knows(TARGETS):
        return None
    found, faults = objects.all_of(SwapProposal, bodies)
    ordered = sorted(found, key=lambda each: (_made(each), each.metadata.name))
    return Rollouts(target=target, proposals=tuple(ordered), unreadable=faults, pods=pods)


def _made(resource: SwapProposal) -> str:
    at = resource.metadata.creation_timestamp
    return at.isoformat() if at else ""


def target_of(world: ClusterView, key: str) -> TuningTarget | None:
    """Return a target; None if it does not exist or is being deleted.

    Raises
    ------
    UnreadableInput
        If it cannot be read.
    """
    body = world.caches.get(TARGETS, key)
    found = None if body is None else read(TuningTarget, body)
    if found is None or found.metadata.deletion_timestamp:
        return None
    labels = {"env": world.environment, **found.metadata.labels} if world.environment else None
    if labels is None:
        return found
    metadata = found.metadata.model_copy(update={"labels": labels})
    return found.model_copy(update={"metadata": metadata})


def server_pods(caches: Caches, target: TuningTarget) -> Sequence[Obj] | None:
    """Return the pods that a target selects; None while they are not known.

    Canary replicas are not among them: no rollout, no health and no drift counts them.
    """
    labels = target.spec.selector.match_labels
    if not labels:
        return ()
    first = next(f"{target.metadata.namespace}/{k}={v}" for k, v in sorted(labels.items()))
    bodies = caches.by(PODS, BY_LABEL, first)
    return None if bodies is None else _serving(bodies, labels)


def _serving(bodies: Sequence[Obj], labels: Mapping[str, str]) -> Sequence[Obj]:
    return [b for b in bodies if objects.selected(b, labels) and not objects.is_replica(b)]


def pods_of(world: ClusterView, target: TuningTarget) -> tuple[ObservedPod, ...] | None:
    """Return the server pods of a target that have a sidecar; None while they are not known."""
    bodies = server_pods(world.caches, target)
    if bodies is None:
        return None
    seen = [objects.pod_seen(body, container=target.spec.container) for body in bodies]
    return tuple(pod for pod in seen if pod is not None)


def facts_of(world: ClusterView, rollouts: Rollouts, resource: SwapProposal) -> RolloutFacts:
    """Return the complete input of a step of one proposal."""
    namespace, name = resource.metadata.namespace, resource.metadata.name
    target, now = rollouts.target, world.clock.now()
    policies = objects.policies(world.caches.list(POLICIES, namespace=namespace))
    said = _together(
        world.caches.by(DECISIONS, BY_PROPOSAL, f"{namespace}/{name}"),
        world.caches.by(DECISIONS, BY_PROPOSAL, f"{namespace}/?"),
    )
    kernel = resource.spec.kernel
    is_live = target is not None and world.kernels.is_live(kernel, target=target)
    checked, fault = _evidence(world, rollouts, resource)
    pods = tuple(_pod(world, resource, pod, now=now, is_live=is_live) for pod in rollouts.pods)
    rule = live_proofs.rule_of(policies, target, kernel)
    unavailable, why = _unavailable(world, policies, target, kernel, pods=pods)
    proofs = resource.status.live_proofs
    if rule is not None:
        proofs = observed(resource, pods, rule=rule, now=now)
    days = sentinels.observed(resource, pods, now=now)
    trials = attributions.observed(resource, pods, now=now)
    return RolloutFacts(
        target=target,
        pods=pods,
        policies=None if rollouts.unreadable else policies,
        decisions=objects.decisions(said),
        freezes=objects.freezes(world.caches.list(FREEZES)),
        others=tuple(o for o in rollouts.proposals if o.metadata.uid != resource.metadata.uid),
        live_baseline=None if target is None else baseline(world, target, kernel),
        evidence_fault=fault,
        evidence_checked=checked,
        metrics=_metrics(world, policies, resource, target, now=now),
        slo_firing=None if target is None else world.signals.slo_firing(target),
        live_proof=_live_proof(resource, proofs, pods, rule=rule),
        live_proofs=proofs,
        sentinels=days,
        attributions=trials,
        repeated_proof=_repeated(resource, days, trials, rule=rule),
        unavailable=unavailable,
        unavailable_detail=why,
    )


def _live_proof(
    resource: SwapProposal,
    proofs: tuple[LiveProofStatus, ...],
    pods: tuple[PodFact, ...],
    *,
    rule: LiveProof | None,
) -> MeasuredFact:
    """Return what live proofs mean for a swap that is under way."""
    if not resource.status.phase.is_under_way:
        return MeasuredFact()
    if rule is None:  # a policy cannot be read
        return MeasuredFact(consequence=Consequence.WAIT)
    status = resource.status
    return measured(proofs, status.rollout, pods, rule=rule, replicas=status.replicas)


def _repeated(
    resource: SwapProposal,
    days: tuple[LiveProofStatus, ...],
    trials: tuple[LiveProofStatus, ...],
    *,
    rule: LiveProof | None,
) -> MeasuredFact:
    """Return what trials of alarms mean for a swap, and for a promoted one its sentinels."""
    if not (resource.status.phase.is_under_way or resource.status.phase is ProposalPhase.PROMOTED):
        return MeasuredFact()
    tried = sentinels.measured(trials, rule=rule, cause=attributions.CAUSE)
    promoted = resource.status.phase is ProposalPhase.PROMOTED
    if tried.consequence is not Consequence.KEEP or not promoted:
        return tried
    return sentinels.measured(days, rule=rule)


def _unavailable(
    world: ClusterView,
    policies: tuple[PolicyFact, ...] | None,
    target: TuningTarget | None,
    kernel: str,
    *,
    pods: tuple[PodFact, ...],
) -> tuple[str, str]:
    """Return what the policy requires and these servers cannot do, and why; empty without it.

    No cluster can measure the whole server. All launches run a table or none does, so a table has
    no canary over launches; and a server may refuse one, as in its batch-invariant mode.
    """
    if policies is None or target is None:
        return "", ""
    chosen, _ = gate_facts.choose(policies, kernel, labels=gate_facts.labels_of(target))
    if chosen is None:
        return "", ""
    limits = limits_of(chosen.policy)
    if limits.end_to_end is EndToEndRule.REQUIRED:
        return "end-to-end-unavailable", ""
    code, why = live_proofs.unavailable(pods, limits.live_proof)
    if code:
        return code, why
    if not is_tunable(kernel):
        return "", ""
    if limits.canary.steps or limits.canary.shadow_first:
        return "canary-not-possible", ""
    launched = world.tunables.launched(target.full_name, kernel)
    refused = launched.refused if launched is not None else ""
    known = not refused or _CODE.fullmatch(refused)
    return refused if known else str(NotTried.SERVER_REFUSES), ""


def baseline(world: ClusterView, target: TuningTarget, kernel: str) -> Digest | None:
    """Return the variant or original that must run in a slot now; None while it is unknown."""
    entries = target.status.active_kernels
    active = next((each.digest for each in entries if each.kernel == kernel), None)
    if active is not None:
        return active
    if is_tunable(kernel):
        launched = world.tunables.launched(target.full_name, kernel)
        return None if launched is None else launched.incumbent.digest
    original = world.kernels.incumbent(kernel, target=target)
    return None if original is None else original.digest


def _together(first: Sequence[Obj] | None, second: Sequence[Obj] | None) -> Sequence[Obj] | None:
    return None if first is None or second is None else [*first, *second]


def _evidence(
    world: ClusterView, rollouts: Rollouts, resource: SwapProposal
) -> tuple[bool, str | None]:
    """Return whether evidence was checked, and its fault if any; only before a swap."""
    if not resource.status.phase.is_before_swap:
        return True, None
    servers = servers_of(world, rollouts.pods)
    if not servers:
        return False, None  # no pod has reported its device yet
    try:
        fault = world.ledger.doubt(resource.stage_proposal(), servers=servers)
    except TemporaryError:
        return False, None
    return True, None if fault is None else str(fault)


def servers_of(world: ClusterView, pods: Sequence[ObservedPod]) -> tuple[ServerEnvironment, ...]:
    """Return what the processes of pods say that they run on."""
    said = [world.reports.of(pod.uid) for pod in pods]
    hellos = [each.hello for each in said if each is not None and each.hello is not None]
    return tuple(process.environment() for hello in hellos for process in hello.environments)


def _metrics(
    world: ClusterView,
    policies: tuple[PolicyFact, ...] | None,
    resource: SwapProposal,
    target: TuningTarget | None,
    *,
    now: datetime,
) -> Mapping[str, Compared]:
    """Query the metrics of the policy, if its next analysis is due; otherwise query nothing."""
    rollout = resource.status.rollout
    if policies is None or target is None or rollout is None:
        return {}
    labels = gate_facts.labels_of(target)
    chosen, _ = gate_facts.choose(policies, resource.spec.kernel, labels=labels)
    rule = chosen.policy.spec.rollout if chosen else None
    if rule is None or not rule.analysis.metrics:
        return {}
    if not waves.look_is_due(resource.status, rule, now=now):
        return {}
    about = EventSubject(
        namespace=target.metadata.namespace,
        target=target.metadata.name,
        pods=tuple(sorted(told.name for told in rollout.pods if told.wants is PodState.SWAP)),
    )
    return world.signals.compare(rule.analysis.metrics, about=about, since=rollout.started_at)


def _pod(
    world: ClusterView, resource: SwapProposal, pod: ObservedPod, *, now: datetime, is_live: bool
) -> PodFact:
    rollout, kernel = resource.status.rollout, resource.spec.kernel
    orders: Mapping[str, PodOrder] = {o.uid: o for o in rollout.pods} if rollout else {}
    said, told = world.reports.of(pod.uid), orders.get(pod.uid)
    slots = said.watch.slots if said is not None and said.watch is not None else ()
    proposal = resource.stage_proposal().id
    about: dict[str, Any] = {
        "environment": environment_of_pod(said),
        "proof": live_proofs.proof_fact(said, resource, uid=pod.uid, now=now),
    }
    if all(slot.definition != kernel for slot in slots):
        held = held_fact(said, kernel=kernel, proposal=proposal)
        fact = presumed(resource, pod, told)
        if said is not None and said.watch is not None and (is_live or is_tunable(kernel)):
            # its slot comes with the first variant: until then, and after a restart, it has none
            fact = PodFact(name=pod.name, uid=pod.uid, ready=pod.ready)
        if said is not None and said.watch is not None and _runs_own_choice(kernel, told):
            assert told is not None, "see there"
            fact = replace(fact, epoch=told.epoch, newest_epoch=told.epoch)
        return replace(fact, ends=pod.ends, held=held, **about)
    fact = pod_fact(
        said,
        name=pod.name,
        uid=pod.uid,
        ready=pod.ready,
        kernel=kernel,
        proposal=proposal,
        now=now,
        ends=pod.ends,
    )
    return replace(fact, **about)


def environment_of_pod(said: PodReports | None) -> str | None:
    """Return what a pod's processes run on, empty if they differ; None while that is not known.

    A sidecar reports its slots last, so that a pod whose slots are known has reported the rest.
    """
    if said is None or said.hello is None or said.watch is None:
        return None
    return environment_digest(said.hello.environments) or ""


def _runs_own_choice(kernel: str, told: PodOrder | None) -> bool:
    """Whether a pod without the slot of a tunable has rolled back.

    A table is in the memory of a process that has launched the kernel. Without such a process the
    server's own choice runs, and a rollback has nothing to wait for.
    """
    return is_tunable(kernel) and told is not None and told.wants is PodState.BACK


def presumed(resource: SwapProposal, pod: ObservedPod, told: PodOrder | None) -> PodFact:
    """Return a pod that has not reported to this process, from the last status.

    An operator that has just started must not take missing reports for a swap that never was.
    An unknown pod gets no order: it counts as one that does not serve yet.
    """
    if told is None or not told.done:
        return PodFact(name=pod.name, uid=pod.uid, ready=False)
    rollout = resource.status.rollout
    previous = rollout.previous.digest if rollout and rollout.previous else None
    active = resource.spec.artifact.digest if told.wants is PodState.SWAP else previous
    return PodFact(
        name=pod.name,
        uid=pod.uid,
        ready=pod.ready,
        active=active,
        epoch=told.epoch,
        newest_epoch=told.epoch,
    )
