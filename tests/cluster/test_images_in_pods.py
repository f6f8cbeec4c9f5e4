"""Our images as pods of the restricted standard: any user, a root that cannot be written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.images import BASE, images
from tests.cluster.serving import image

from retuned_operator.manifests.pod_security import container_security, pod_security

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMESPACE = "images"
ANYBODY = 23456
"""A user that no image has an entry for, as OpenShift gives them."""
_MB = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def namespace(cluster: Cluster) -> Iterator[None]:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.kubectl(
        "apply", "-f", "-",
        given=[{"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": restricted}}],
    )  # fmt: skip
    yield
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def run(cluster: Cluster, target: str, *command: str, name: str, gpus: int = 0) -> tuple[int, str]:
    """Run a command in a pod of an image to its end; return exit code and log."""
    limits = {"memory": "512Mi", **({"amd.com/gpu": str(gpus)} if gpus else {})}
    container: dict[str, Any] = {
        "name": "it",
        "image": image(target, TAG),
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": limits},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": pod_security(ANYBODY),
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    cluster.kubectl("apply", "-f", "-", given=[pod])
    where = ("pod", name, "-n", NAMESPACE)

    def phase() -> str:
        return str(cluster.get(*where)["status"]["phase"])

    cluster.eventually(lambda: phase() in ("Succeeded", "Failed"), f"{name} ends")
    (status,) = cluster.get(*where)["status"]["containerStatuses"]
    return status["state"]["terminated"]["exitCode"], cluster.kubectl("logs", *where[1:])


@pytest.mark.parametrize("target", ["sidecar", "experiment", "server"])
def test_an_image_runs_as_anybody_on_a_root_that_cannot_be_written(
    cluster: Cluster, target: str
) -> None:
    code, log = run(cluster, target, "retuned", "--help", name=f"help-{target}")
    assert code == 0, log
    assert "Usage" in log


def test_the_sidecar_is_less_than_200_mb_over_its_base(built: dict[str, Path]) -> None:
    with images() as kept:
        over = kept.bytes_of(image("sidecar", TAG)) - kept.bytes_of(BASE)
    assert over < 200 * _MB


@pytest.mark.parametrize(
    ("target", "absent"),
    [
        ("sidecar", ["torch", "triton", "kubernetes", "pip"]),
        ("operator", ["torch", "triton", "pip"]),
        ("experiment", ["kubernetes", "pip"]),
        ("server", ["kubernetes", "pip"]),
    ],
)
def test_an_image_has_nothing_that_it_must_not_have(
    cluster: Cluster, target: str, absent: list[str]
) -> None:
    text = (
        "import importlib.util, json, sys; "
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"
    )
    code, log = run(cluster, target, "python", "-c", text, *absent, name=f"absent-{target}")
    assert code == 0, log
    assert json.loads(log) == []


def test_the_runtime_that_is_delivered_loads_without_anything_else(cluster: Cluster) -> None:
    text = (
        "import sys; sys.path[:0] = ['/opt/retuned/runtime']; import retuned.runtime; "
        "print(retuned.runtime.__file__); "
        "print(sorted({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names "
        "- {'retuned', 'sitecustomize'}))"
    )
    # -S: without the image's own packages
    code, log = run(cluster, "sidecar", "python3", "-S", "-c", text, name="delivered")
    assert code == 0, log
    where, loaded = log.splitlines()
    assert where.startswith("/opt/retuned/runtime/")
    assert loaded == "['__main__']"


def test_an_experiment_compiles_and_runs_beside_an_accelerator(cluster: Cluster) -> None:
    text = (
        "import ctypes, pathlib, subprocess; "
        "pathlib.Path('/tmp/a.cc').write_text('extern \"C\" int two() { return 2; }'); "
        "subprocess.run(['g++', '-O3', '-march=native', '-shared', '-fPIC', '-o', '/tmp/a.so', "
        "'/tmp/a.cc'], check=True); print(ctypes.CDLL('/tmp/a.so').two())"
    )
    code, log = run(cluster, "experiment", "python", "-c", text, name="compiles", gpus=2)
    assert (code, log.strip()) == (0, "2")


def test_a_plan_that_is_none_is_said_to_be_none(cluster: Cluster) -> None:
    command = ("sh", "-c", "echo '{}' > /tmp/task.json; exec python -m retuned.experiment $0",
               "/tmp/task.json")  # fmt: skip
    code, log = run(cluster, "experiment", *command, name="no-plan")
    assert code == 3
    assert "failed" in json.loads(log.splitlines()[-1])
