"""The `restricted` Pod Security Standard of Kubernetes, written from its documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: Mapping[str, Any], *, only: set[str] | None = None) -> list[str]:
    """Return what the standard refuses; `only` looks at some containers of somebody else's pod."""
    return list(_violations(spec, only))


def _violations(spec: Mapping[str, Any], only: set[str] | None) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= _VOLUMES:
            yield f"volume {volume['name']} is {sorted(kinds)}"
    pod = spec.get("securityContext", {})
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        if only is not None and container["name"] not in only:
            continue
        own = container.get("securityContext", {})
        effective = {**pod, **own}
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{container['name']} may escalate"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{container['name']} keeps capabilities"
        if own.get("privileged"):
            yield f"{container['name']} is privileged"
        if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
            yield f"{container['name']} may be root"
        if effective.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{container['name']} has no seccomp profile"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield f"{container['name']} takes a port of its host"
