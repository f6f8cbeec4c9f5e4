"""The accelerators of server pods: how many they request, and what they were seen to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from retuned.stages.drift import GpuObservation, gpu_words
from retuned_operator.controllers.objects import FINISHED, part, parts

_MAX_GPUS = 64
"""Most accelerators of one pod that count."""


def gpus_of(body: Mapping[str, Any], resources: Collection[str]) -> int:
    """Return the accelerators that a pod requests, at least 1.

    Parts of one are resources of other names, and a pod that has such a part counts as 1 too.

    Parameters
    ----------
    body
        The pod.
    resources
        Names of the resources that are accelerators.

    Examples
    --------
    >>> asks = {"resources": {"limits": {"amd.com/gpu": "8", "cpu": "4"}}}
    >>> gpus_of({"spec": {"containers": [asks, {}]}}, {"amd.com/gpu"})
    8
    >>> gpus_of({"spec": {"containers": [{}]}}, {"amd.com/gpu"})
    1
    """
    found = 0
    for each in parts(part(body, "spec"), "containers"):
        wanted = part(each, "resources")
        asked = {**part(wanted, "limits"), **part(wanted, "requests")}
        found += sum(_whole(asked.get(name)) for name in resources)
    return min(max(found, 1), _MAX_GPUS)


def gpus_of_all(bodies: Iterable[Mapping[str, Any]], resources: Collection[str]) -> int:
    """Return the accelerators of all pods that have not ended.

    Examples
    --------
    >>> pod = {"spec": {"containers": [{"resources": {"requests": {"amd.com/gpu": "4"}}}]}}
    >>> gpus_of_all([pod, pod, {**pod, "status": {"phase": "Failed"}}], {"amd.com/gpu"})
    8
    """
    return sum(
        gpus_of(body, resources)
        for body in bodies
        if part(body, "status").get("phase") not in FINISHED
    )


def beside_of(kept: Mapping[str, Any]) -> str:
    """Return the state of accelerators during a pod's drift, as text; empty if nothing is notable.

    Parameters
    ----------
    kept
        The report as it was kept; it was checked when it came.

    Examples
    --------
    >>> beside_of({"gpus": [{"gpu": "amd-0", "throttled": ["power"]}]}), beside_of({"gpus": 1})
    ('amd-0 is throttled (power)', '')
    """
    try:
        return gpu_words(GpuObservation.model_validate(each) for each in kept.get("gpus", ()))
    except (TypeError, ValidationError):
        return ""


def _whole(quantity: object) -> int:
    """Return a quantity of a resource that only comes whole; 0 for anything else."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
