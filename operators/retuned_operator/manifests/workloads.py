"""Where in an object its pods are described, for those kinds that make pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Place = tuple[str, ...]
"""Keys from the object down to a pod template; empty is the object itself."""

_TEMPLATE: Place = ("spec", "template")
_PLACES: Mapping[tuple[str, str], tuple[Place, ...]] = {
    ("", "Pod"): ((),),
    ("", "PodTemplate"): (("template",),),
    ("", "ReplicationController"): (_TEMPLATE,),
    ("apps", "DaemonSet"): (_TEMPLATE,),
    ("apps", "Deployment"): (_TEMPLATE,),
    ("apps", "ReplicaSet"): (_TEMPLATE,),
    ("apps", "StatefulSet"): (_TEMPLATE,),
    ("batch", "CronJob"): (("spec", "jobTemplate", "spec", "template"),),
    ("batch", "Job"): (_TEMPLATE,),
    ("argoproj.io", "Rollout"): (_TEMPLATE,),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        ("spec", "leaderWorkerTemplate", "leaderTemplate"),
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
    ),
}
"""By group and kind, whatever the version."""
KINDS = frozenset(kind for _, kind in _PLACES)
"""Kinds that make pods, of whatever group."""


def templates_of(body: Mapping[str, Any]) -> tuple[tuple[Place, Mapping[str, Any]], ...]:
    """Return the pod templates of an object with their places; empty where it makes no pods.

    Examples
    --------
    >>> job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}}
    >>> templates_of(job)
    ((('spec', 'template'), {'spec': {}}),)
    >>> templates_of({"apiVersion": "v1", "kind": "Service"})
    ()
    """
    group, _, version = str(body.get("apiVersion", "")).rpartition("/")
    kind = body.get("kind")
    if not version or not isinstance(kind, str):
        return ()
    found = []
    for place in _PLACES.get((group, kind), ()):
        template: Any = body
        for key in place:
            template = template.get(key) if isinstance(template, Mapping) else None
        if isinstance(template, Mapping):
            found.append((place, template))
    return tuple(found)
