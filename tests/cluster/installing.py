"""The chart as these tests install it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import MODEL, Cluster
from tests.cluster.images import REGISTRY
from tests.plane.control_plane import ROOT

CHART = ROOT / "charts" / "retuned"
NAMESPACE = "retuned-system"
OPERATOR = ("-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")
"""Arguments of kubectl that select the operator's pods."""
STORE_USER = 65532
"""Whom the operator's pod runs as."""


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
            "--wait", "--timeout=600s", given=given,
        )  # fmt: skip
        yield
    finally:
        uninstall(cluster)


def upgrade(cluster: Cluster, given: Mapping[str, Any]) -> None:
    """Install the chart over itself."""
    cluster.helm(
        "upgrade", "retuned", str(CHART), "--namespace", NAMESPACE,
        "--wait", "--timeout=600s", given=given,
    )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    """Take the chart away again, if it is there."""
    cluster.helm(
        "uninstall", "retuned", "--namespace", NAMESPACE,
        "--wait", "--timeout=600s", "--ignore-not-found",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Volume:
    """A small disk of the node that the chart's store is on."""

    cluster: Cluster
    folder: Path

    @contextmanager
    def full(self) -> Iterator[None]:
        """Take what is left of it for a block, the room that the database has set aside too."""
        text = 'dd if=/dev/zero of="$0/filler" bs=1M 2>/dev/null || true'
        self.cluster.node.run(*self._with_database("PRAGMA wal_checkpoint(TRUNCATE)"))
        self.cluster.node.run("sh", "-c", text, str(self.folder))
        try:
            yield
        finally:
            self.cluster.node.run("rm", str(self.folder / "filler"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep everybody else from writing into the operator's database for a block."""
        self.cluster.node.start("holder", *self._with_database("BEGIN IMMEDIATE", wait_s=600.0))
        try:
            yield
        finally:
            self.cluster.node.stop("holder")

    def _with_database(self, statement: str, *, wait_s: float = 0.0) -> Sequence[str]:
        """Return a command that says something to the operator's database, and stays a while."""
        text = (
            "import pathlib, sqlite3, sys, time; "
            "(path,) = pathlib.Path(sys.argv[1]).glob('state/*.sqlite3'); "
            "db = sqlite3.connect(path, timeout=60, isolation_level=None); "
            "db.execute(sys.argv[2]).fetchall(); time.sleep(float(sys.argv[3]))"
        )
        return sys.executable, "-c", text, str(self.folder), statement, str(wait_s)

    @contextmanager
    def tampered(self, digest: str) -> Iterator[None]:
        """Let an artifact in the operator's store have other code for a block."""
        artifact = self.folder / "artifacts" / digest.removeprefix("sha256:")
        text = (
            "import json, pathlib, sys; folder = pathlib.Path(sys.argv[1]); "
            "path = folder / json.loads((folder / 'artifact.json').read_bytes())['binary']; "
            "data = bytearray(path.read_bytes()); data[len(data) // 2] ^= 1; "
            "path.write_bytes(data)"
        )
        self.cluster.node.run(sys.executable, "-c", text, str(artifact))
        try:
            yield
        finally:
            self.cluster.node.run(sys.executable, "-c", text, str(artifact))


@contextmanager
def volume(cluster: Cluster, name: str) -> Iterator[Volume]:
    """Lend the chart's store a small disk of the node, by a storage class of its own."""
    folder = cluster.folder / f"volume-{name}"
    folder.mkdir()
    options = f"size=256m,uid={STORE_USER},gid={STORE_USER},mode=0700"
    cluster.node.run("mount", "-t", "tmpfs", "-o", options, name, str(folder))
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": name,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
        },
    }
    cluster.kubectl("apply", "-f", "-", given=[made])
    try:
        yield Volume(cluster, folder)
    finally:
        cluster.kubectl("delete", "pvc", "--all", "-n", NAMESPACE, "--wait=false")
        cluster.kubectl("delete", "pv", name, "--wait=false")
