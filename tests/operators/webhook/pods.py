"""Pods as people write them."""

from __future__ import annotations

from typing import Any


def _pod(name: str, spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    said = {"retuned.dev/inject": "true"} | {f"retuned.dev/{k}": v for k, v in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": said},
        "spec": spec,
    }


PODS: dict[str, dict[str, Any]] = {
    "vllm": _pod(
        "vllm",
        {
            "containers": [
                {
                    "name": "vllm",
                    "image": "rocm/vllm:latest",
                    "command": ["vllm", "serve", "m", "--tensor-parallel-size", "8"],
                    "env": [
                        {
                            "name": "HF_TOKEN",
                            "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}},
                        },
                        {"name": "VLLM_USE_TRITON_FLASH_ATTN", "value": "1"},
                    ],
                    "ports": [{"containerPort": 8000}],
                    "resources": {"limits": {"amd.com/gpu": "8"}},
                    "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
            "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}],
        },
        target="chat",
    ),
    "sglang": _pod(
        "sglang",
        {
            "hostNetwork": True,
            "hostIPC": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "containers": [
                {
                    "name": "sglang",
                    "image": "lmsysorg/sglang:latest",
                    "command": ["python3", "-m", "sglang.launch_server"],
                    "envFrom": [{"configMapRef": {"name": "serving"}}],
                    "securityContext": {"privileged": True},
                },
                {"name": "exporter", "image": "exporter:1"},
            ],
            "nodeSelector": {"kubernetes.io/os": "linux"},
        },
        container="sglang",
    ),
    "own-path": _pod(
        "own-path",
        {
            "containers": [
                {
                    "name": "server",
                    "image": "server:1",
                    "env": [{"name": "PYTHONPATH", "value": "/opt/lib:/app"}],
                }
            ]
        },
    ),
    "walled": _pod(
        "walled",
        {
            "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 2000},
            "automountServiceAccountToken": False,
            "initContainers": [
                {"name": "weights", "image": "fetch:1", "command": ["fetch"]},
                {"name": "logs", "image": "logs:1", "restartPolicy": "Always"},
            ],
            "containers": [
                {
                    "name": "server",
                    "image": "server:1",
                    "securityContext": {
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    ),
    "limited": _pod(
        "limited",
        {
            "containers": [
                {
                    "name": "server",
                    "image": "server:1",
                    "resources": {
                        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                        "limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                    },
                }
            ]
        },
    ),
}
