"""Names, labels and owners of objects that the operator makes: the same input has the same name.

A name is a digest of the object's purpose. An operator that was killed between two writes makes the
same object again, and the API server answers that it exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from retuned.api.values import API_VERSION, GROUP

MANAGER = "retuned-operator"
"""Field manager of server-side apply, and label of what is made."""
EXPERIMENT_UID = f"{GROUP}/experiment-uid"
"""Label of everything that belongs to an experiment."""
ROLE = f"{GROUP}/role"
"""Label with the role of a pod of an experiment."""
ATTEMPT = f"{GROUP}/attempt"
"""Label with the number of the try."""
INJECT = f"{GROUP}/inject"
"""Annotation of a pod template that asks for the sidecar; also its label once it is there."""
CONTAINER = f"{GROUP}/container"
"""Annotation that names the container that serves, where a pod has several."""
TARGET = f"{GROUP}/target"
"""Annotation that names the TuningTarget; the name of the server towards people."""
METRICS_URL = f"{GROUP}/server-metrics-url"
"""Annotation with the address of the server's own metrics, as its pod reaches it."""
REPLICA_OF = f"{GROUP}/replica-of"
"""Label of a canary replica: name of its SwapProposal."""
PAIR = f"{GROUP}/replica-pair"
"""Label of a canary replica: name of its pair."""

_HASH_DIGITS = 20


def child_name(prefix: str, *parts: str | int) -> str:
    """Return the name of the object that is for these parts.

    Examples
    --------
    >>> child_name("verify", "uid", 1) == child_name("verify", "uid", 1)
    True
    >>> child_name("verify", "uid", 1) == child_name("verify", "uid1", 1)
    False
    >>> len(child_name("verify", "uid", 1))
    27
    """
    text = "\x00".join(str(part) for part in parts)
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def experiment_name(plan: str, *, target_uid: str) -> str:
    """Return the name of the KernelExperiment of a plan: a plan is paid for once a target."""
    return child_name("exp", target_uid, plan)


def proposal_name(proposal: str, *, target_uid: str) -> str:
    """Return the name of the SwapProposal of a proposal's id."""
    return child_name("swp", target_uid, proposal)


def labels(component: str, **more: str) -> dict[str, str]:
    """Return the labels of an object.

    Parameters
    ----------
    component
        What it is part of: ``experiment``, ``operator``, ``access``.
    more
        Further labels; underscores in their names become dashes, below the group.
    """
    return {
        "app.kubernetes.io/name": "retuned",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": MANAGER,
        **{f"{GROUP}/{name.replace('_', '-')}": value for name, value in more.items()},
    }


def owner(kind: str, *, name: str, uid: str) -> dict[str, Any]:
    """Return the reference of an owner: with it goes what it owns, in the same namespace only."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the entries that say nothing; False and 0 say something."""
    return {
        key: value
        for key, value in body.items()
        if value is not None and value not in ("", (), []) and value != {}
    }
