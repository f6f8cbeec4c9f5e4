"""The walls around pods: what the `restricted` standard of Kubernetes asks for, and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def pod_security(user_id: int, *, groups: Sequence[int] = ()) -> dict[str, Any]:
    """Return the security context of a pod that runs untrusted code.

    Parameters
    ----------
    user_id
        User, and group of files in its volumes.
    groups
        Supplemental groups, such as the one that may open the accelerator.
    """
    body: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": user_id,
        "runAsGroup": user_id,
        "fsGroup": user_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if groups:
        body["supplementalGroups"] = list(groups)
    return body


def container_security(user_id: int | None = None) -> dict[str, Any]:
    """Return the security context of a container.

    Parameters
    ----------
    user_id
        User, if the pod's context belongs to another author; then it also sets seccomp.
    """
    body: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    if user_id is not None:
        body |= {
            "runAsUser": user_id,
            "runAsGroup": user_id,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    return body
