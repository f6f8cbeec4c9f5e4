"""The chart as these tests install it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.cluster.cluster import MODEL, Cluster
from tests.cluster.images import REGISTRY
from tests.plane.control_plane import ROOT

CHART = ROOT / "charts" / "retuned"
NAMESPACE = "retuned-system"
OPERATOR = ("-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")
"""Arguments of kubectl that select the operator's pods."""


def values(tag: str) -> Mapping[str, Any]:
    """Return values for images that are loaded, and a node of two cores."""
    small = {"cpu": "500m", "memory": "1Gi", "work": "1Gi"}
    return {
        "image": {"registry": REGISTRY, "pullPolicy": "Never"},
        "operator": {"image": {"tag": tag}, "resources": {"requests": {"cpu": "100m"}}},
        "sidecar": {"image": {"tag": tag}},
        "experiments": {
            "image": {"tag": tag},
            "gpuModels": {"MI300X": dict(MODEL)},
            "sizes": dict.fromkeys(("compile", "generate", "search", "verify"), small),
        },
        "store": {"persistent": False},  # the cluster has nobody who makes volumes
    }


@contextmanager
def installed(cluster: Cluster, given: Mapping[str, Any]) -> Iterator[None]:
    """Install the chart for a block; the definitions stay, as they are meant to."""
    try:
        cluster.helm(
            "install", "retuned", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
            "--wait", "--timeout=180s", given=given,
        )  # fmt: skip
        yield
    finally:
        uninstall(cluster)


def upgrade(cluster: Cluster, given: Mapping[str, Any]) -> None:
    """Install the chart over itself."""
    cluster.helm(
        "upgrade", "retuned", str(CHART), "--namespace", NAMESPACE,
        "--wait", "--timeout=180s", given=given,
    )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    """Take the chart away again, if it is there."""
    cluster.helm(
        "uninstall", "retuned", "--namespace", NAMESPACE,
        "--wait", "--timeout=120s", "--ignore-not-found",
    )  # fmt: skip
