"""Canary replicas of a proposal: what is seen of their pods, their state, and their pods made.

The decisions are those of `retuned.control.canary`. What a replica's sidecar reports is untrusted.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from retuned.api.proposal import SwapProposal, SwapProposalStatus
from retuned.contract import Digest
from retuned.control import RolloutFacts, RolloutStep, canary
from retuned.control.facts import ReplicaFact, ReplicaFacts
from retuned.control.live_proofs import NO_CANARY_REPLICAS
from retuned.report.live_proof import boots_sentence
from retuned.stages.watch.proof import ReplicaState
from retuned_operator.agent_api.reports import PodReports
from retuned_operator.controllers import objects
from retuned_operator.controllers.cluster_view import ClusterView, Rollouts, environment_of_pod
from retuned_operator.controllers.objects import part, parts
from retuned_operator.controllers.ports import BY_LABEL, Ledger, Owners
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.errors import ApiError, Forbidden, NotFound
from retuned_operator.kube.resources import PODS, REPLICA_SETS, STATEFUL_SETS, Obj
from retuned_operator.manifests.names import REPLICA_OF
from retuned_operator.manifests.replicas import (
    OWNERS,
    ReplicaTemplate,
    replica_pod,
    template_of,
)

log = logging.getLogger(__name__)

_FAILED = "replica-failed"
_RESTARTED = "replica-restarted"
_NO_SIDECAR = "replica-without-sidecar"
_MOST_OWNERS = 4
"""Workloads of one target that are asked for their template: two while one rolls out."""
_KINDS = {"ReplicaSet": REPLICA_SETS, "StatefulSet": STATEFUL_SETS}
_SENTENCE = 1000


def with_replicas(
    facts: RolloutFacts, world: ClusterView, rollouts: Rollouts, resource: SwapProposal
) -> RolloutFacts:
    """Return the facts with those of canary replicas, where the operator may make them.

    Raises
    ------
    TemporaryError
        If the stored state, or a workload, cannot be read now.
    """
    status = resource.status
    proving = canary.is_proving(status)
    needed = status.phase.is_before_swap and facts.unavailable == NO_CANARY_REPLICAS
    if world.owners is None or not (proving or needed):
        return facts
    templates, why = _templates(world, world.owners, rollouts, resource)
    digest = status.replicas.state if status.replicas is not None else None
    state = _state(world.ledger, digest, proposal=resource.stage_proposal().id)
    container = rollouts.target.spec.container if rollouts.target is not None else ""
    pods = tuple(
        _fact(world, resource, body, container=container) for body in _bodies(world, resource)
    )
    found = ReplicaFacts(
        pods=pods,
        templates=tuple(templates),
        no_template=why,
        state=state,
        lost=digest is not None and state is None,
        coin=secrets.SystemRandom(),
    )
    return replace(facts, replicas=found)


def with_state(
    resource: SwapProposal, status: SwapProposalStatus, step: RolloutStep, *, ledger: Ledger
) -> SwapProposalStatus:
    """Return a status that names the new state, which is signed in the store.

    The last state of a proof is its evidence: it has the verdict and all boots.

    Raises
    ------
    TemporaryError
        If it cannot be kept now: the status is written with it or not at all.
    """
    state, kept = step.replica_state, status.replicas
    if state is None or kept is None:
        return status
    body = {
        "gate": "live-proof",
        "proposal": resource.stage_proposal().id,
        "definition": resource.spec.kernel,
        "artifact": resource.spec.artifact.digest,
        "template": kept.template,
        "state": state.model_dump(mode="json"),
    }
    update: dict[str, object] = {"state": ledger.keep_proof(json.dumps(body).encode())}
    report, detail = state.report, status.detail
    if report is not None and kept.verdict:
        sentence = boots_sentence(report)[:_SENTENCE]
        if kept.why:
            sentence += f"; replicas did not lead to boots that count ({kept.why})"
        update["sentence"] = sentence
        if status.reason == f"live-proof-{report.reason}":
            detail = sentence
    after = kept.model_copy(update=update)
    return status.model_copy(update={"replicas": after, "detail": detail})


def keep_up(
    world: ClusterView, acting: ClusterWriter, rollouts: Rollouts, resource: SwapProposal
) -> None:
    """Delete the replicas that a proposal does not name any more, and make those it names.

    A pod that the API server refuses is left out: its pair is abandoned in its time.

    Parameters
    ----------
    resource
        The proposal as it was written.
    """
    if world.owners is None or resource.status.replicas is None:
        return
    bodies = {body["metadata"]["name"]: body for body in _bodies(world, resource)}
    existing = {name: str(body["metadata"]["uid"]) for name, body in bodies.items()}
    make, delete = canary.due(resource.status, existing)
    namespace = resource.metadata.namespace
    for name in delete:
        if not bodies[name]["metadata"].get("deletionTimestamp"):
            acting.delete(PODS, name, namespace=namespace, uid=existing[name])
    if not make:
        return
    templates, _ = _templates(world, world.owners, rollouts, resource)
    for each in make:
        template = templates.get(each.template)
        if template is None:
            continue
        body = replica_pod(
            template,
            name=each.name,
            pair=each.pair,
            namespace=namespace,
            proposal=resource.metadata.name,
            proposal_uid=resource.metadata.uid,
        )
        try:
            acting.make(PODS, body)
        except ApiError as error:
            log.warning("replica %s/%s is not made: %s", namespace, each.name, error)


def _bodies(world: ClusterView, resource: SwapProposal) -> Iterator[Obj]:
    """Yield the pods that the operator made for a proposal."""
    namespace, name = resource.metadata.namespace, resource.metadata.name
    for body in world.caches.by(PODS, BY_LABEL, f"{namespace}/{REPLICA_OF}={name}") or ():
        if objects.owner_uid(body) == resource.metadata.uid:
            yield body


def _fact(world: ClusterView, resource: SwapProposal, body: Obj, *, container: str) -> ReplicaFact:
    metadata, status = body["metadata"], part(body, "status")
    uid, said = str(metadata["uid"]), world.reports.of(str(metadata["uid"]))
    made = objects.moment(metadata.get("creationTimestamp")) or world.clock.now()
    slots = said.watch.slots if said is not None and said.watch is not None else ()
    slot = next((each for each in slots if each.definition == resource.spec.kernel), None)
    boot = said.proofs.boot if said is not None and said.proofs is not None else None
    about = (resource.stage_proposal().id, resource.spec.kernel, metadata["name"])
    if boot is not None and (boot.proposal, boot.definition, boot.replica) != about:
        boot = None
    return ReplicaFact(
        name=str(metadata["name"]),
        uid=uid,
        made_at=made,
        running=status.get("phase") == "Running",
        failed=_failed(body, container=container),
        environment=_environment(said),
        active=slot.active if slot is not None else None,
        reports=said is not None and said.proofs is not None,
        ready_since=_ready_since(status, made=made),
        boot=boot,
    )


def _failed(body: Obj, *, container: str) -> str:
    """Return why a replica is of no use any more, a stable code; empty if it may be."""
    if body["metadata"].get("deletionTimestamp"):
        return canary.GONE
    if part(body, "status").get("phase") in objects.FINISHED:
        return _FAILED
    seen = objects.pod_seen(body, container=container)
    if seen is None:
        return _NO_SIDECAR
    return _RESTARTED if seen.ends else ""


def _environment(said: PodReports | None) -> str | None:
    """Return the environment of a replica; None until its server has reported it."""
    hello = said.hello if said is not None else None
    return environment_of_pod(said) if hello is not None and hello.environments else None


def _ready_since(status: Mapping[str, Any], *, made: datetime) -> datetime | None:
    for each in parts(status, "conditions"):
        if each.get("type") == "Ready" and each.get("status") == "True":
            return objects.moment(each.get("lastTransitionTime")) or made
    return None


def _templates(
    world: ClusterView, owners: Owners, rollouts: Rollouts, resource: SwapProposal
) -> tuple[dict[Digest, ReplicaTemplate], str]:
    """Return the templates of serving pods with the proposal's environment, or why none is of use.

    Pods are asked in the order of their names, and each workload once.
    """
    namespace, found, why = resource.metadata.namespace, dict[Digest, ReplicaTemplate](), ""
    asked: set[tuple[str, str]] = set()
    for pod in sorted(rollouts.pods, key=lambda each: each.name):
        said = world.reports.of(pod.uid)
        if not pod.ready or environment_of_pod(said) != resource.spec.environment:
            continue
        body = world.caches.get(PODS, f"{namespace}/{pod.name}") or {}
        ref = _controller(body)
        kind, name = str(ref.get("kind", "")), str(ref.get("name", ""))
        if (ref.get("apiVersion"), kind) not in OWNERS:
            why = f"{pod.name} is of no ReplicaSet and no StatefulSet"
            continue
        if (kind, name) in asked or len(asked) >= _MOST_OWNERS:
            continue
        asked.add((kind, name))
        template = _read(owners, kind, name, namespace=namespace, uid=str(ref.get("uid", "")))
        if isinstance(template, ReplicaTemplate):
            found[template.digest] = template
        else:
            why = f"{kind} {name}: {template}"
    return found, "" if found else why


def _controller(body: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = parts(part(body, "metadata"), "ownerReferences")
    return next((each for each in owners if each.get("controller")), {})


def _read(
    owners: Owners, kind: str, name: str, *, namespace: str, uid: str
) -> ReplicaTemplate | str:
    try:
        body = owners.get(_KINDS[kind], name, namespace=namespace)
    except NotFound:
        return "it does not exist any more"
    except Forbidden:
        return "the operator may not read it"
    if part(body, "metadata").get("uid") != uid:
        return "it is another one by now"
    return template_of(body)


def _state(ledger: Ledger, digest: Digest | None, *, proposal: str) -> ReplicaState | None:
    """Return the stored state; None without one, and if it is lost or cannot be understood."""
    kept = ledger.proof(digest) if digest is not None else None
    if kept is None:
        return None
    try:
        body = json.loads(kept)
        if body["proposal"] != proposal:
            raise ValueError(f"it is of {body['proposal']}")
        return ReplicaState.model_validate_json(json.dumps(body["state"]))
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        log.error("the state %s of canary replicas cannot be read: %s", digest, error)
        return None
