"""What comes into a server's pod: two containers, their folders, what the server sees of them."""

from __future__ import annotations

from typing import Any

from retuned_operator.manifests.names import without_empty
from retuned_operator.manifests.pod_security import container_security
from retuned_operator.manifests.settings import SidecarSettings

SIDECAR = "retuned"
"""Name of the sidecar; a pod that has it is left as it is."""
DELIVERY = "retuned-runtime"
"""Name of the init container that delivers the runtime, and of its volume."""
METRICS = "retuned-metrics"
"""Name of the port that a PodMonitor finds sidecars by."""
METRICS_PORT = 9475
RUNTIME_DIR = "/retuned/runtime"
SOCKET_DIR = "/retuned/sockets"
"""Mounted whole, so that it is root's: the runtime refuses a folder of another user."""
TRACE_DIR = "/retuned/traces"
STATE_DIR = "/retuned/state"
TOKEN_DIR = "/var/run/secrets/retuned.dev"
_TRACES_LIMIT = "4Gi"
"""Eight times what the sidecar lets lie there: past the limit the kubelet evicts the whole pod, its
server included, and it has to be out of reach while a sidecar is started again."""


def server_mounts() -> list[dict[str, Any]]:
    """Return what the container that serves gets to see."""
    return [
        {"name": DELIVERY, "mountPath": RUNTIME_DIR, "readOnly": True},
        {"name": "retuned-sockets", "mountPath": SOCKET_DIR},
        {"name": "retuned-traces", "mountPath": TRACE_DIR},
    ]


def volumes(settings: SidecarSettings) -> list[dict[str, Any]]:
    """Return the volumes that the pod gets; every folder has a limit."""
    token = {
        "serviceAccountToken": {
            "audience": settings.audience,
            "expirationSeconds": settings.token_s,
            "path": "token",
        }
    }
    authority = {
        "configMap": {
            "name": settings.ca_config_map,
            "items": [{"key": "ca.crt", "path": "ca.crt"}],
            "optional": True,  # a server starts without us rather than not at all
        }
    }
    return [
        {"name": DELIVERY, "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "retuned-sockets", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "retuned-traces", "emptyDir": {"sizeLimit": _TRACES_LIMIT}},
        {"name": "retuned-state", "emptyDir": {"sizeLimit": settings.artifacts}},
        {"name": "retuned-token", "projected": {"sources": [token, authority]}},
    ]


def delivery(settings: SidecarSettings) -> dict[str, Any]:
    """Return the init container that copies the runtime to where the server finds it."""
    return {
        "name": DELIVERY,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["cp", "-r", "/opt/retuned/runtime/.", RUNTIME_DIR],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": settings.cpu_limit, "memory": "64Mi"},
        },
        "securityContext": container_security(settings.user_id),
        "volumeMounts": [{"name": DELIVERY, "mountPath": RUNTIME_DIR}],
    }


def sidecar(settings: SidecarSettings, *, target: str, metrics_url: str = "") -> dict[str, Any]:
    """Return the sidecar, a native one.

    Parameters
    ----------
    settings
        How it looks.
    target
        TuningTarget that the pod names; if empty, the operator finds it.
    metrics_url
        Address of the server's metrics; empty takes that of the settings.
    """
    values = {
        "RETUNED_AGENT_URL": settings.agent_url,
        "RETUNED_TOKEN_FILE": f"{TOKEN_DIR}/token",
        "RETUNED_CA_FILE": f"{TOKEN_DIR}/ca.crt",
        "RETUNED_TARGET": target,
        "RETUNED_SOCKET_DIR": SOCKET_DIR,
        "RETUNED_WATCH_DIRS": TRACE_DIR,
        "RETUNED_STATE_DIR": STATE_DIR,
        "RETUNED_TRUSTED_KEY": settings.trusted_keys,
        "RETUNED_WINDOW_S": str(settings.window_s),
        "RETUNED_SETTLE_S": str(settings.settle_s),
        "RETUNED_BASELINE_WINDOWS": str(settings.baseline_windows),
        "RETUNED_DETECTOR_PRESET": settings.detector,
        "RETUNED_SERVER_METRICS_URL": metrics_url or settings.server_metrics_url,
        "RETUNED_TRACES_URL": settings.traces_url,
        "RETUNED_METRICS_ADDRESS": settings.metrics_address,
        "RETUNED_METRICS_PORT": str(METRICS_PORT),
        "RETUNED_LOG_FORMAT": settings.log_format,
        "TMPDIR": STATE_DIR,
    }
    fields = {
        "RETUNED_POD_NAME": "metadata.name",
        "RETUNED_POD_UID": "metadata.uid",
        "RETUNED_POD_NAMESPACE": "metadata.namespace",
    }
    env: list[dict[str, Any]] = [
        without_empty({"name": name, "value": value}) for name, value in values.items() if value
    ]
    env += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    return {
        "name": SIDECAR,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "restartPolicy": "Always",
        "command": ["retuned", "sidecar"],
        "env": env,
        "ports": [{"name": METRICS, "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": settings.cpu, "memory": settings.memory},
            "limits": {"cpu": settings.cpu_limit, "memory": settings.memory},
        },
        "securityContext": container_security(settings.user_id),
        "volumeMounts": [
            {"name": "retuned-sockets", "mountPath": SOCKET_DIR},
            {"name": "retuned-traces", "mountPath": TRACE_DIR},
            {"name": "retuned-state", "mountPath": STATE_DIR},
            {"name": "retuned-token", "mountPath": TOKEN_DIR, "readOnly": True},
        ],
    }
