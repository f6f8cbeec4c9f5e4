"""Converts objects of the API server to the input of the state machines. Pure.

An object that cannot be read is "not known", which is None, and never left out silently: a policy,
decision or freeze that cannot be read may be one that forbids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from retuned.api.values import GROUP
from retuned.control import PolicyFact, jobs
from retuned.errors import UnreadableInput
from retuned.stages import gate
from retuned_operator.kube.resources import Obj
from retuned_operator.manifests.names import EXPERIMENT_UID, REPLICA_OF
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.schema import (
    ExperimentPhase,
    KernelExperiment,
    PolicyObject,
    SwapDecision,
    SwapProposal,
    TuningFreeze,
    TuningTarget,
    read,
)

R = TypeVar("R", TuningTarget, PolicyObject, KernelExperiment, SwapProposal, SwapDecision)
EXPERIMENT = f"{GROUP}/experiment"
"""Annotation of a Job: ``namespace/name`` of its experiment."""
LET_GO = ("released", jobs.WAITS_FOR_ROOM, jobs.STARTING)
"""Reasons of an experiment whose Job was let go and does not run yet."""
FINISHED = ("Succeeded", "Failed")
"""Phases of pods that have ended."""
_WORKING = ("Running", "Verifying")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """One server pod as Kubernetes knows it."""

    name: str
    """Its name."""
    uid: str
    """Its uid."""
    ready: bool
    """Whether it serves and is not on its way out."""
    ends: int = 0
    """How often the container that serves has ended."""


def all_of(model: type[R], bodies: Iterable[Obj]) -> tuple[tuple[R, ...], tuple[str, ...]]:
    """Return the objects that can be read, and why others cannot."""
    found: list[R] = []
    faults: list[str] = []
    for body in bodies:
        try:
            found.append(read(model, body))
        except UnreadableInput as error:
            faults.append(str(error))
    return tuple(found), tuple(faults)


def policies(bodies: Sequence[Obj] | None) -> tuple[PolicyFact, ...] | None:
    """Return the policies of a namespace; None while one of them is not known."""
    if bodies is None:
        return None
    found, faults = all_of(PolicyObject, bodies)
    if faults:
        return None
    return tuple(
        PolicyFact(policy=each.stage_policy(), generation=each.metadata.generation)
        for each in found
        if each.metadata.deletion_timestamp is None
    )


def freezes(bodies: Sequence[Obj] | None) -> tuple[gate.TuningFreeze, ...] | None:
    """Return every freeze; None while one of them is not known."""
    if bodies is None:
        return None
    try:
        return tuple(read(TuningFreeze, body).stage_freeze() for body in bodies)
    except (UnreadableInput, ValueError):
        return None


def decisions(bodies: Sequence[Obj] | None) -> tuple[SwapDecision, ...] | None:
    """Return the decisions on a proposal; None while one of them cannot be read.

    Parameters
    ----------
    bodies
        Decisions that name it, as far as that can be seen; None while that is not known.
    """
    if bodies is None:
        return None
    found, faults = all_of(SwapDecision, bodies)
    return None if faults else found


def proposal_word(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which word a decision is found: its proposal, and ``?`` where none is named."""
    spec = body.get("spec")
    ref = spec.get("proposalRef") if isinstance(spec, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    namespace = str(body.get("metadata", {}).get("namespace", ""))
    return (f"{namespace}/{name if isinstance(name, str) and name else '?'}",)


def target_word(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which word an experiment or proposal is found: its target."""
    spec = body.get("spec")
    ref = spec.get("targetRef") if isinstance(spec, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    namespace = str(body.get("metadata", {}).get("namespace", ""))
    return (f"{namespace}/{name}",) if isinstance(name, str) and name else ()


def phase_word(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which word a proposal is found: its phase, and ``Pending`` before the first."""
    phase = part(body, "status").get("phase")
    return (phase if isinstance(phase, str) and phase else "Pending",)


def selector_words(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which word a target is found: the first label that it selects by."""
    namespace = str(part(body, "metadata").get("namespace", ""))
    wanted = part(part(part(body, "spec"), "selector"), "matchLabels")
    return tuple(f"{namespace}/{key}={wanted[key]}" for key in sorted(wanted)[:1])


def label_words(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which words a pod is found: ``namespace/key=value`` of each label."""
    metadata = body.get("metadata", {})
    namespace = str(metadata.get("namespace", ""))
    return tuple(f"{namespace}/{key}={value}" for key, value in labels_of(body).items())


def sidecar_words(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which word a pod with a sidecar is found: its namespace."""
    found = pod_seen(body, container="") is not None
    return (str(part(body, "metadata").get("namespace", "")),) if found else ()


def experiment_words(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which words a Job is found: uid of its experiment, and ``namespace/name``."""
    notes = part(part(body, "metadata"), "annotations")
    words = (labels_of(body).get(EXPERIMENT_UID), notes.get(EXPERIMENT))
    return tuple(word for word in words if isinstance(word, str) and word)


def is_over(body: Mapping[str, Any]) -> bool:
    """Whether an experiment has ended, as far as its status can be read."""
    phase = part(body, "status").get("phase")
    return phase in set(ExperimentPhase) and ExperimentPhase(str(phase)).is_terminal


def budget_words(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return under which words an experiment is found that has used, or uses, its place."""
    spec, status = part(body, "spec"), part(body, "status")
    policy = part(spec, "policyRef").get("name")
    namespace = str(part(body, "metadata").get("namespace", ""))
    # a Job may start and end between two passes; then no status reports its start
    ran = any(ref.get("result") for ref in parts(status, "jobRefs"))
    works = status.get("phase") in _WORKING or status.get("reason") in LET_GO
    if not (status.get("startedAt") or works or ran):
        return ()
    ended = moment(status.get("finishedAt"))
    return (f"{namespace}/{policy}@{ended.astimezone(UTC).date() if ended else 'open'}",)


def selected(body: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether an object carries all of some labels; an empty selector selects no object."""
    labels = labels_of(body)
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def is_replica(body: Mapping[str, Any]) -> bool:
    """Whether a pod is a canary replica: it has the label, and a SwapProposal controls it.

    The label alone would let a pod template take its pods out of their target.
    """
    owners = parts(part(body, "metadata"), "ownerReferences")
    owned = any(
        each.get("controller")
        and each.get("kind") == "SwapProposal"
        and str(each.get("apiVersion", "")).startswith(f"{GROUP}/")
        for each in owners
    )
    return owned and REPLICA_OF in labels_of(body)


def pod_seen(body: Mapping[str, Any], *, container: str) -> ObservedPod | None:
    """Return a server pod; None if it has ended, or has no sidecar that could get orders.

    Parameters
    ----------
    container
        Container that serves.
    """
    metadata, spec, status = (part(body, key) for key in ("metadata", "spec", "status"))
    containers = [*parts(spec, "initContainers"), *parts(spec, "containers")]
    names = {each.get("name") for each in containers}
    if status.get("phase") in FINISHED or SIDECAR not in names or not metadata.get("uid"):
        return None
    conditions = {each.get("type"): each.get("status") for each in parts(status, "conditions")}
    return ObservedPod(
        name=str(metadata.get("name", "")),
        uid=str(metadata["uid"]),
        ready=conditions.get("Ready") == "True" and not metadata.get("deletionTimestamp"),
        ends=_ends(status, container),
    )


def _ends(status: Mapping[str, Any], container: str) -> int:
    """Count how often a container has ended: restarts, and once more where it does not run now."""
    for each in parts(status, "containerStatuses"):
        if each.get("name") == container:
            restarts = each.get("restartCount")
            counted = restarts if isinstance(restarts, int) and restarts > 0 else 0
            state, last = part(each, "state"), part(each, "lastState")
            over = "terminated" in state or ("waiting" in state and "terminated" in last)
            return counted + over
    return 0


def pod_ended_at(body: Mapping[str, Any]) -> str:
    """Return when the last container of a pod ended, RFC 3339; empty if unknown."""
    status = part(body, "status")
    states = [
        part(part(each, "state"), "terminated") for each in parts(status, "containerStatuses")
    ]
    return max((str(each.get("finishedAt") or "") for each in states), default="")


def owner_uid(body: Mapping[str, Any]) -> str:
    """Return the uid of the object that controls an object; empty where none does."""
    owners = parts(part(body, "metadata"), "ownerReferences")
    return next((str(each.get("uid", "")) for each in owners if each.get("controller")), "")


def moment(text: object) -> datetime | None:
    """Return a time of the API server; None without a valid time."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def labels_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an object."""
    return part(part(body, "metadata"), "labels")


def part(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping within an object; empty if it is not a mapping."""
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def parts(body: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return the mappings of a list within an object; empty if it is not a list."""
    found = body.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
