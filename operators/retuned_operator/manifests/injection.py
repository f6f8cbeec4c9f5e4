"""The sidecar and the runtime as a change to a pod. Pure: a pod in, a pod and its patch out.

Three ways use it: the webhook, the Helm library template (a test compares them) and
``kubectl retuned inject``. An init container copies the runtime into an empty folder, which
``PYTHONPATH`` of the server names first, so that workers that the server spawns have it too; the
sidecar is a native one (an init container that restarts always). Both run as a separate user,
independent of the server's user: the runtime lets that user connect. Neither has a probe, so that
a sidecar that fails does not make a server unready.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from retuned_operator.manifests.names import CONTAINER, INJECT, METRICS_URL, TARGET
from retuned_operator.manifests.settings import SidecarSettings
from retuned_operator.manifests.sidecar import (
    DELIVERY,
    RUNTIME_DIR,
    SIDECAR,
    SOCKET_DIR,
    TRACE_DIR,
    delivery,
    server_mounts,
    sidecar,
    volumes,
)

SITE = f"{RUNTIME_DIR}/retuned/runtime/site"
"""Folder that ``PYTHONPATH`` names."""
PYTHONPATH = "retuned.dev/pythonpath"
"""Annotation with the ``PYTHONPATH`` of the image, which the pod spec does not show."""

Patch = tuple[Mapping[str, Any], ...]
_OS = "kubernetes.io/os"
_MIRROR = "kubernetes.io/config.mirror"
_CHANGED = ("env", "volumeMounts")
"""What is changed in the container that serves."""


class NotInjected(StrEnum):
    """Stable codes for a pod that is left as it is."""

    NOT_ASKED = "not-asked"
    ALREADY_THERE = "already-there"
    NO_CONTAINER = "no-container"
    PYTHONPATH_ELSEWHERE = "pythonpath-from-elsewhere"
    NAME_TAKEN = "name-taken"
    NOT_A_POD = "not-a-pod"
    WINDOWS = "windows-pod"
    STATIC = "static-pod"
    MOUNT_TAKEN = "mount-taken"
    POD_RESOURCES = "pod-level-resources"

    @property
    def is_trouble(self) -> bool:
        """Whether the pod requests the sidecar and does not get it."""
        return self not in (NotInjected.NOT_ASKED, NotInjected.ALREADY_THERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What becomes of a pod."""

    pod: Mapping[str, Any]
    """The pod, with the sidecar or as it was."""
    patch: Patch = ()
    """The same as a JSON patch; empty where nothing changes."""
    reason: NotInjected | None = None
    """Why nothing changes; None where it does."""
    detail: str = ""
    """One sentence for the author of the pod."""


def inject(pod: Mapping[str, Any], *, settings: SidecarSettings, always: bool = False) -> Injection:
    """Put sidecar and runtime into a pod, or return why not. Never raises for a pod's content.

    It is idempotent.

    Parameters
    ----------
    pod
        Pod or pod template: ``metadata`` and ``spec``.
    settings
        How the sidecar looks.
    always
        Whether without the annotation too, for ``kubectl retuned inject``.
    """
    spec, annotations = _parts(pod)
    if spec is None:
        return _left(pod, NotInjected.NOT_A_POD, "metadata or spec is not that of a pod")
    asked = str(annotations.get(INJECT, "")).lower()
    if asked == "false" or (asked != "true" and not always):
        return _left(pod, NotInjected.NOT_ASKED, f"the annotation {INJECT} is not true")
    present = {c.get("name") for c in [*(spec.get("initContainers") or []), *spec["containers"]]}
    if SIDECAR in present:
        return _left(pod, NotInjected.ALREADY_THERE, "the sidecar is there")
    ours = {str(volume["name"]) for volume in volumes(settings)}
    taken = sorted(({DELIVERY} & present) | (ours & _names(spec.get("volumes"))))
    if taken:
        return _left(pod, NotInjected.NAME_TAKEN, f"the pod has its own {', '.join(taken)}")
    index = _container(spec["containers"], str(annotations.get(CONTAINER, "")))
    if index is None:
        text = f"name the container that serves by the annotation {CONTAINER}"
        return _left(pod, NotInjected.NO_CONTAINER, text)
    unfit = _unfit(spec, annotations) or _unfit_server(spec["containers"][index])
    if unfit is not None:
        return _left(pod, *unfit)
    return _injected(pod, index, settings=settings, annotations=annotations)


def _unfit(
    spec: Mapping[str, Any], annotations: Mapping[str, Any]
) -> tuple[NotInjected, str] | None:
    """Say why a pod with the sidecar would not start, or would not be what it was."""
    system, nodes = spec.get("os") or {}, spec.get("nodeSelector") or {}
    named = [each.get(key) for each, key in ((system, "name"), (nodes, _OS)) if _is_mapping(each)]
    if "windows" in named:
        return NotInjected.WINDOWS, "the sidecar and the runtime are for Linux"
    if _MIRROR in annotations:
        return NotInjected.STATIC, "a kubelet's own pod can have no token"
    if spec.get("resources"):
        text = "what the pod may use as a whole leaves no room that is known for the sidecar"
        return NotInjected.POD_RESOURCES, text
    return None


def _unfit_server(server: Mapping[str, Any]) -> tuple[NotInjected, str] | None:
    """Say why the container that serves cannot be given the runtime."""
    if any(
        each.get("name") == "PYTHONPATH" and "valueFrom" in each for each in server.get("env") or []
    ):
        text = "PYTHONPATH comes from elsewhere (valueFrom), so nothing can be put before it"
        return NotInjected.PYTHONPATH_ELSEWHERE, text
    ours = {str(each["mountPath"]) for each in server_mounts()}
    theirs = {
        posixpath.normpath(str(each.get("mountPath"))) for each in server.get("volumeMounts") or []
    }
    if ours & theirs:
        text = f"it mounts something at {', '.join(sorted(ours & theirs))} already"
        return NotInjected.MOUNT_TAKEN, text
    return None


def _injected(
    pod: Mapping[str, Any],
    index: int,
    *,
    settings: SidecarSettings,
    annotations: Mapping[str, Any],
) -> Injection:
    changed = copy.deepcopy(dict(pod))
    spec = changed["spec"]
    server = spec["containers"][index]
    server["env"] = _server_environment(server.get("env") or [], annotations, settings)
    server["volumeMounts"] = [*(server.get("volumeMounts") or []), *server_mounts()]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes(settings)]
    said = {name: str(annotations.get(name, "")) for name in (TARGET, METRICS_URL)}
    first = [
        delivery(settings),
        sidecar(settings, target=said[TARGET], metrics_url=said[METRICS_URL]),
    ]
    if _is_limited(spec):
        for each in first:
            each["resources"]["requests"] = dict(each["resources"]["limits"])
    spec["initContainers"] = [*first, *(spec.get("initContainers") or [])]
    metadata = changed.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), INJECT: "true"}
    at = f"/spec/containers/{index}"
    patch = [
        _set(f"{at}/env", server["env"]),
        _set(f"{at}/volumeMounts", server["volumeMounts"]),
        _set("/spec/volumes", spec["volumes"]),
        _set("/spec/initContainers", spec["initContainers"]),
        _set("/metadata/labels", metadata["labels"]),
    ]
    return Injection(pod=changed, patch=tuple(patch))


def _is_limited(spec: Mapping[str, Any]) -> bool:
    """Whether every container has limits, so that the pod's class may be ``Guaranteed``.

    It then must stay so: without that class a pod loses its exclusive cores and is evicted earlier.
    """
    for each in [*(spec.get("initContainers") or []), *spec["containers"]]:
        resources = each.get("resources")
        limits = resources.get("limits") if _is_mapping(resources) else None
        if not _is_mapping(limits) or not {"cpu", "memory"} <= set(limits):
            return False
    return True


def _set(path: str, value: object) -> Mapping[str, Any]:
    return {"op": "add", "path": path, "value": value}  # replaces an existing value


def _left(pod: Mapping[str, Any], reason: NotInjected, detail: str) -> Injection:
    return Injection(pod=pod, reason=reason, detail=detail)


def _parts(pod: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Return spec and annotations; None where what is read or changed is not as in a pod."""
    spec, metadata = pod.get("spec"), pod.get("metadata") or {}
    if not isinstance(spec, Mapping) or not isinstance(metadata, Mapping):
        return None, {}
    about = [metadata.get("annotations") or {}, metadata.get("labels") or {}]
    containers = spec.get("containers")
    lists = [containers, spec.get("initContainers") or [], spec.get("volumes") or []]
    if not (all(isinstance(each, Mapping) for each in about) and all(map(_is_list, lists))):
        return None, {}
    inside = [each.get(name) or [] for each in spec["containers"] for name in _CHANGED]
    return (spec, about[0]) if all(map(_is_list, inside)) else (None, {})


def _is_mapping(found: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(found, Mapping)


def _is_list(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, Mapping) for one in found)


def _names(found: Sequence[Mapping[str, Any]] | None) -> set[str]:
    return {str(each.get("name")) for each in found or []}


def _container(containers: Sequence[Mapping[str, Any]], named: str) -> int | None:
    """Return which container serves: the one that is named, or the only one."""
    if named:
        found = [n for n, each in enumerate(containers) if each.get("name") == named]
        return found[0] if found else None
    return 0 if len(containers) == 1 else None


def _server_environment(
    env: Sequence[Mapping[str, Any]], annotations: Mapping[str, Any], settings: SidecarSettings
) -> list[dict[str, Any]]:
    """Put our folder before the server's ``PYTHONPATH``; what the server sets itself stays."""
    own = {str(each.get("name")): each for each in env}
    behind = str(own.get("PYTHONPATH", {}).get("value") or annotations.get(PYTHONPATH) or "")
    ours = {
        "RETUNED_SOCKET_DIR": SOCKET_DIR,
        "RETUNED_ALLOWED_UIDS": str(settings.user_id),
        "RETUNED_TRACE_DIR": TRACE_DIR,
        "RETUNED_PROFILE_EVERY_S": str(settings.profile_every_s),
        "RETUNED_PROFILE_MS": str(settings.profile_milliseconds),
        "RETUNED_SERVER": str(annotations.get(TARGET, "")),
        "RETUNED_TRUSTED_KEY": settings.trusted_keys,
    }
    added = [
        {"name": name, "value": value} for name, value in ours.items() if value and name not in own
    ]
    path = {"name": "PYTHONPATH", "value": ":".join(part for part in (SITE, behind) if part)}
    kept = [dict(each) for each in env if each.get("name") != "PYTHONPATH"]
    return [path, *added, *kept]  # first, so that the server's own values may refer to them
