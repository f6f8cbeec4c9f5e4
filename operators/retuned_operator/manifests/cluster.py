"""What keeps experiments away from production: priority, quota, limits, and no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retuned.api.experiment import JobRole
from retuned_operator.manifests.names import ROLE, labels
from retuned_operator.manifests.settings import Endpoint

BELOW_ALL = -100
"""Priority of experiments: under everything, and under the autoscaler's usual cutoff of -10."""
ABOVE_CUTOFF = -5
"""Priority of experiments that may make a cluster grow; still under every server."""

_EXPERIMENT_PODS = {
    "app.kubernetes.io/name": "retuned",
    "app.kubernetes.io/component": "experiment",
}


def experiment_namespace(name: str) -> dict[str, Any]:
    """Return a namespace that lets in only pods of the `restricted` standard."""
    modes = ("enforce", "audit", "warn")
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": labels("experiment")
            | {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in modes},
        },
    }


def priority_class(name: str, *, may_scale_up: bool = False) -> dict[str, Any]:
    """Return the priority class of experiments: all other pods preempt them, never the reverse.

    Parameters
    ----------
    may_scale_up
        Whether waiting experiments may make the cluster grow.
    """
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "labels": labels("experiment")},
        "value": ABOVE_CUTOFF if may_scale_up else BELOW_ALL,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Kernel experiments: below all production; they preempt no other pods.",
    }


def quota(
    namespace: str,
    *,
    priority: str,
    gpu_resources: Sequence[str],
    max_gpus: int,
    max_pods: int = 32,
) -> dict[str, Any]:
    """Return the quota of experiment pods in a namespace.

    Parameters
    ----------
    priority
        Priority class that it is for; other pods of the namespace are left alone.
    gpu_resources
        Names of the accelerator resources.
    max_gpus
        Most accelerators of each at one time.
    """
    hard = {f"requests.{name}": str(max_gpus) for name in sorted(gpu_resources)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "name": "retuned-experiments",
            "namespace": namespace,
            "labels": labels("experiment"),
        },
        "spec": {
            "hard": {"pods": str(max_pods), **hard},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": [priority]}
                ]
            },
        },
    }


def limit_range(
    namespace: str, *, max_cpu: str, max_memory: str, max_storage: str
) -> dict[str, Any]:
    """Return the bounds of each container in a namespace that holds experiments and nothing else.

    A container without requests gets small defaults, so that no pod takes a whole node by an
    omission. None gets more than the largest experiment may have.

    Parameters
    ----------
    max_cpu, max_memory, max_storage
        Most of one container, as Kubernetes writes quantities.
    """
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {
            "name": "retuned-experiments",
            "namespace": namespace,
            "labels": labels("experiment"),
        },
        "spec": {
            "limits": [
                {
                    "type": "Container",
                    "max": {
                        "cpu": max_cpu,
                        "memory": max_memory,
                        "ephemeral-storage": max_storage,
                    },
                    "default": {"cpu": "500m", "memory": "256Mi", "ephemeral-storage": "256Mi"},
                    "defaultRequest": {
                        "cpu": "100m",
                        "memory": "64Mi",
                        "ephemeral-storage": "64Mi",
                    },
                }
            ]
        },
    }


def network_policies(namespace: str, *, endpoint: Endpoint | None) -> tuple[dict[str, Any], ...]:
    """Return the policies of experiment pods: nothing in, nothing out; one way to the model.

    Only ``generate`` pods, which never run what was generated, may reach the model's endpoint; they
    are given its addresses, so that no pod needs a name server.
    """
    everything = _policy("retuned-experiments-closed", namespace, match=_EXPERIMENT_PODS)
    everything["spec"] |= {"policyTypes": ["Ingress", "Egress"]}
    if endpoint is None:
        return (everything,)
    generate = _policy(
        "retuned-generate-endpoint",
        namespace,
        match=_EXPERIMENT_PODS | {ROLE: str(JobRole.GENERATE)},
    )
    to = {
        "to": [{"ipBlock": {"cidr": endpoint.cidr}}],
        "ports": [{"protocol": "TCP", "port": endpoint.port}],
    }
    generate["spec"] |= {"policyTypes": ["Egress"], "egress": [to]}
    return everything, generate


def _policy(name: str, namespace: str, *, match: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": labels("experiment")},
        "spec": {"podSelector": {"matchLabels": match}},
    }
