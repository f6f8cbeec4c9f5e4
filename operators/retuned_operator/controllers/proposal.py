"""SwapProposals: all of one target, one after the other, because they share its pods.

The SwapProposal of an experiment's win, as an object.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from retuned.api.target import ActiveKernel, Quarantined
from retuned.api.values import API_VERSION, GROUP, Abort
from retuned.control import (
    Activate,
    Deactivate,
    PageOnCall,
    Quarantine,
    RolloutStep,
    proposal,
    step_spans,
)
from retuned.control.facts import RolloutAction
from retuned.errors import RetunedError
from retuned.ports import Telemetry
from retuned.stages.proposal import Proposal
from retuned_operator.controllers import conditions, lessons, live_proofs, replicas, writer
from retuned_operator.controllers.cluster_view import ClusterView, Rollouts, facts_of, rollouts_of
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.errors import Conflict
from retuned_operator.kube.resources import PROPOSALS, TARGETS, Obj
from retuned_operator.manifests import proposal_name
from retuned_operator.manifests.names import labels, owner
from retuned_operator.schema import (
    KernelExperiment,
    ProposalPhase,
    SwapProposal,
    SwapProposalStatus,
    TuningTarget,
    TuningTargetStatus,
    proposal_spec,
    read,
    write,
)

NOT_KNOWN_S = 5.0
"""When to look again while the caches are not complete, seconds."""
FORMER_FINALIZER = f"{GROUP}/rollout"
"""Finalizer of earlier versions. It is removed, because it would block a deletion after an
uninstall. Pods roll back without it when their orders end."""
_KEPT = 256
_SETTLED = frozenset(
    {
        ProposalPhase.INVALID,
        ProposalPhase.REJECTED,
        ProposalPhase.EXPIRED,
        ProposalPhase.ABORTED,
        ProposalPhase.SUPERSEDED,
    }
)
"""Nothing of it ever reached a pod, and nothing follows: there may be many of them."""


class Proposals:
    """Controller; its keys are targets, ``namespace/name``.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    telemetry
        Numbers.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter, *, telemetry: Telemetry) -> None:
        self._world = world
        self._acting = acting
        self._telemetry = telemetry

    def reconcile(self, key: str) -> float | None:
        """Take every proposal of a target one step further; return when to look again, seconds.

        Raises
        ------
        RetunedError
            The first error; the other proposals have still rolled back where they had to.
        """
        rollouts = rollouts_of(self._world, key)
        if rollouts is None:
            return NOT_KNOWN_S
        return self._all(rollouts)

    def _all(self, rollouts: Rollouts) -> float | None:
        due: list[datetime] = []
        failed: RetunedError | None = None
        for resource in rollouts.proposals:
            try:
                rollouts, step = self._one(rollouts, resource)
            except RetunedError as error:  # others may still roll back, but none may start
                failed = failed or error
                rollouts = replace(rollouts, unreadable=(*rollouts.unreadable, str(error)))
                continue
            due += [step.look_again_at] if step.look_again_at else []
        if failed is not None:
            raise failed
        self._without_proposal(rollouts)
        now = self._world.clock.now()
        return max(0.0, (min(due) - now).total_seconds()) if due else None

    def _one(self, rollouts: Rollouts, resource: SwapProposal) -> tuple[Rollouts, RolloutStep]:
        """Decide, write the status, and only then act; return the rollouts after it."""
        now = self._world.clock.now()
        freed = self._freed(resource)
        if freed is None or freed.status.phase in _SETTLED:
            if freed is not None:
                replicas.keep_up(self._world, self._acting, rollouts, freed)
            return rollouts, RolloutStep(status=resource.status)
        resource = freed
        facts = facts_of(self._world, rollouts, resource)
        facts = replicas.with_replicas(facts, self._world, rollouts, resource)
        step = proposal.step(leaving(resource), facts, now=now)
        ledger = self._world.ledger
        status = replicas.with_state(resource, step.status, step, ledger=ledger)
        status = conditions.with_proposal_conditions(resource, status, now=now)
        status = live_proofs.with_evidence(
            resource, status, reports=self._world.reports, ledger=ledger
        )
        with self._turn(resource, status):
            after = self._acting.status(PROPOSALS, resource, status)
            self._tell(resource, status)
            target = rollouts.target
            for action in step.actions:
                target = self._act(target, after, action)
            replicas.keep_up(self._world, self._acting, rollouts, after)
            # last: a rollback does not wait for it
            lessons.keep(after, ledger=ledger, reports=self._world.reports)
        return _with(replace(rollouts, target=target), after), step

    def _turn(
        self, resource: SwapProposal, status: SwapProposalStatus
    ) -> AbstractContextManager[None]:
        """Be in the span of a step, which goes on from the last and links to what pods did."""
        telling = step_spans.of_proposal(resource, status)
        if telling is None:
            return nullcontext()
        return self._acting.spans.span(
            telling.stage,
            after=step_spans.last_span(resource),
            links=self._links(resource),
            about=telling.about,
        )

    def _links(self, resource: SwapProposal) -> list[str]:
        """Return the spans in which pods last carried out, or took back, an order of a proposal."""
        rollout = resource.status.rollout
        if rollout is None:
            return []
        id = resource.stage_proposal().id
        said = (self._world.reports.of(told.uid) for told in rollout.pods)
        return [span for each in said if each is not None for span in each.spans.get(id, ())]

    def _freed(self, resource: SwapProposal) -> SwapProposal | None:
        """Remove the finalizer of an earlier version; None if the proposal is deleted by that.

        Its pods roll back by themselves.
        """
        body = self._body(resource)
        known = finalizers_of(body)
        if body is None or FORMER_FINALIZER not in known:
            return resource
        rest = [each for each in known if each != FORMER_FINALIZER]
        after = self._acting.finalizers(PROPOSALS, body, rest)
        gone = resource.metadata.deletion_timestamp is not None and not rest
        return None if gone else read(SwapProposal, after)

    def _without_proposal(self, rollouts: Rollouts) -> None:
        """Remove from a target the variants promoted by proposals that do not exist any more.

        New pods do not get them, and pods that run them roll back by themselves.
        """
        target, names = rollouts.target, {each.metadata.name for each in rollouts.proposals}
        if target is None or rollouts.unreadable:
            return
        known = target.status.active_kernels
        for entry in known:
            if entry.proposal not in names:
                action = Deactivate(kernel=entry.kernel)
                self._acting.change_target(target, partial(applied, action=action, known=known))

    def _body(self, resource: SwapProposal) -> Obj | None:
        metadata = resource.metadata
        return self._world.caches.get(PROPOSALS, f"{metadata.namespace}/{metadata.name}")

    def _tell(self, resource: SwapProposal, status: SwapProposalStatus) -> None:
        for event in conditions.proposal_events(resource, resource.status, status):
            self._acting.say(event)
        for step in status.history:
            if step not in resource.status.history:
                writer.proposal_moved(self._telemetry, step, status)
        live_proofs.count_verdicts(self._telemetry, resource.status, status)

    def _act(
        self, target: TuningTarget | None, resource: SwapProposal, action: RolloutAction
    ) -> TuningTarget | None:
        if isinstance(action, PageOnCall):
            self._acting.page(resource, action)
            return target
        if target is None:
            return None
        known = target.status.active_kernels
        return self._acting.change_target(target, lambda now: applied(now, action, known=known))


def leaving(resource: SwapProposal) -> SwapProposal:
    """Return a proposal as input of the state machine: a deletion is an abort on all pods.

    Without the object the operator could not order a swap on a new pod.
    """
    if resource.metadata.deletion_timestamp is None:
        return resource
    abort = Abort(requested=True, reason="the proposal was deleted")
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"abort": abort})})


def finalizers_of(body: Obj | None) -> list[str]:
    """Return what must be done before an object may go."""
    found = (body or {}).get("metadata", {}).get("finalizers")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def applied(
    status: TuningTargetStatus,
    action: Activate | Deactivate | Quarantine,
    *,
    known: tuple[ActiveKernel, ...],
) -> TuningTargetStatus:
    """Return a target's status with an action done.

    Parameters
    ----------
    status
        As it is now.
    action
        What is to be done.
    known
        Active kernels that the action was decided on.

    Raises
    ------
    Conflict
        If the active variant changed since the decision: decide again.
    """
    if isinstance(action, Quarantine):
        return _quarantined(status, action.entry)
    kernel = action.entry.kernel if isinstance(action, Activate) else action.kernel
    if _entry(status.active_kernels, kernel) != _entry(known, kernel):
        raise Conflict(f"{kernel} has changed hands meanwhile", status=409)
    rest = tuple(each for each in status.active_kernels if each.kernel != kernel)
    new = (action.entry,) if isinstance(action, Activate) else ()
    return status.model_copy(update={"active_kernels": (*rest, *new)})


def _entry(entries: tuple[ActiveKernel, ...], kernel: str) -> ActiveKernel | None:
    return next((each for each in entries if each.kernel == kernel), None)


def _quarantined(status: TuningTargetStatus, entry: Quarantined) -> TuningTargetStatus:
    """Return the status with one more artifact kept away; the longest time counts."""
    known = next((each for each in status.quarantine if each.digest == entry.digest), None)
    if known is not None and known.until >= entry.until:
        return status
    rest = sorted(
        (each for each in status.quarantine if each.digest != entry.digest),
        key=lambda each: each.until,
    )
    return status.model_copy(update={"quarantine": (*rest[-_KEPT + 1 :], entry)})


def _with(rollouts: Rollouts, after: SwapProposal) -> Rollouts:
    """Return the rollouts with one proposal as it was just written: the next step counts on it."""
    found = tuple(
        after if each.metadata.uid == after.metadata.uid else each for each in rollouts.proposals
    )
    return replace(rollouts, proposals=found)


def propose(
    acting: ClusterWriter, resource: KernelExperiment, *, proposal: Proposal, target: TuningTarget
) -> str:
    """Write the proposal of a win; return its name, which follows from what it is about."""
    spec = proposal_spec(
        proposal,
        target=target.metadata.name,
        gpu_model=resource.spec.gpu_model,
        experiment=resource.metadata.name,
    )
    name = proposal_name(proposal.id, target_uid=target.metadata.uid)
    about = {"experiment": resource.metadata.name, "kernel": spec.kernel, "name": name}
    with acting.spans.span("proposal", after=step_spans.last_span(resource), about=about):
        acting.make(PROPOSALS, proposal_body(name, write(spec), target=target))
    return name


def proposal_body(name: str, spec: dict[str, Any], *, target: TuningTarget) -> dict[str, Any]:
    """Return a SwapProposal that goes with its target."""
    return {
        "apiVersion": API_VERSION,
        "kind": PROPOSALS.kind,
        "metadata": {
            "name": name,
            "namespace": target.metadata.namespace,
            "labels": labels("experiment"),
            "ownerReferences": [
                owner(TARGETS.kind, name=target.metadata.name, uid=target.metadata.uid)
            ],
        },
        "spec": spec,
    }
