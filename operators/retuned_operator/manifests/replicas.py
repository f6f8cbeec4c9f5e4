"""Canary replicas: pods like those of a workload, owned by a SwapProposal. Pure.

A replica has the labels of its template, so that Services send it traffic and its TuningTarget
selects it. It lacks the labels by which a workload counts its pods, and the SwapProposal is its
controller, so that no workload adopts it and it goes with the SwapProposal.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retuned.contract import Digest, digest_of
from retuned_operator.manifests.names import MANAGER, PAIR, REPLICA_OF, owner

OWNERS = frozenset({("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet")})
"""Workloads whose template a replica can be made from: version of the API and kind."""
_COUNTED = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "controller-revision-hash",
        "pod-template-hash",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels by which a workload selects its own pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTemplate:
    """Pod template of a workload."""

    body: Mapping[str, Any]
    """``metadata`` and ``spec`` of its pods."""

    @property
    def digest(self) -> Digest:
        """Digest of the template."""
        return digest_of(self.body)


def template_of(workload: Mapping[str, Any]) -> ReplicaTemplate | str:
    """Return the template for replicas, or the reason against one, as text.

    Parameters
    ----------
    workload
        A ReplicaSet or a StatefulSet.

    Examples
    --------
    >>> template_of({"kind": "StatefulSet", "spec": {"volumeClaimTemplates": [{}], "template": {}}})
    'each of its pods has separate volumes'
    """
    spec = workload.get("spec")
    found = spec.get("template") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(found, Mapping):
        return "it has no pod template"
    if spec.get("volumeClaimTemplates"):
        return "each of its pods has separate volumes"
    if not isinstance(found.get("spec"), Mapping) or not found["spec"].get("containers"):
        return "its pod template has no containers"
    return ReplicaTemplate(body=found)


def replica_pod(
    template: ReplicaTemplate,
    *,
    name: str,
    pair: str,
    namespace: str,
    proposal: str,
    proposal_uid: str,
) -> dict[str, Any]:
    """Return the pod of one replica.

    Parameters
    ----------
    template
        What it is like.
    name
        Its name.
    pair
        Name of its pair.
    namespace
        Of the proposal and the workload.
    proposal, proposal_uid
        The SwapProposal that owns it.
    """
    metadata = template.body.get("metadata")
    about: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    labels = {
        key: value for key, value in (about.get("labels") or {}).items() if key not in _COUNTED
    }
    ours = {REPLICA_OF: proposal, PAIR: pair, "app.kubernetes.io/managed-by": MANAGER}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels | {key: each for key, each in ours.items() if key not in labels},
            "annotations": dict(about.get("annotations") or {}),
            "ownerReferences": [owner("SwapProposal", name=proposal, uid=proposal_uid)],
        },
        "spec": copy.deepcopy(dict(template.body["spec"])),
    }
    body["metadata"]["labels"] |= {REPLICA_OF: proposal, PAIR: pair}
    return body
