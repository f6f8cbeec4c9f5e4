"""The control plane of the tests is a real one, with nodes that exist only in its store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import eventually

pytestmark = pytest.mark.plane

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"amd.com/gpu.product-name": "MI300X"}},
    "status": {
        "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110", "amd.com/gpu": "8"},
        "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110", "amd.com/gpu": "8"},
    },
}


def job(name: str, *, gpus: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    container = {
        "name": "work",
        "image": "nothing/runs:here",
        "resources": {"limits": {"amd.com/gpu": str(gpus)}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations or {}},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def get(plane: ControlPlane, admin: Path, *what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plane.kubectl("get", *what, "-o", "json", kubeconfig=admin))
    return found


def test_jobs_that_ask_for_gpus_run_on_nodes_that_offer_them(
    plane: ControlPlane, admin: Path
) -> None:
    given = yaml.safe_dump_all(
        [NODE, job("fits", gpus=2), job("fails", gpus=1, annotations={"tests/outcome": "fails"})]
    )
    plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=given)

    def ended(name: str) -> str:
        conditions = get(plane, admin, "job", name)["status"].get("conditions", [])
        return next((each["type"] for each in conditions if each["status"] == "True"
                     and each["type"] in ("Complete", "Failed")), "")  # fmt: skip

    eventually(lambda: ended("fits") == "Complete")
    eventually(lambda: ended("fails") == "Failed")
    plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=yaml.safe_dump(job("large", gpus=9)))
    eventually(lambda: bool(get(plane, admin, "pods", "-l", "job-name=large")["items"]))
    (pod,) = get(plane, admin, "pods", "-l", "job-name=large")["items"]
    assert pod["spec"].get("nodeName") is None


def test_pods_of_a_deleted_job_are_collected(plane: ControlPlane, admin: Path) -> None:
    given = yaml.safe_dump_all([NODE, job("owner", gpus=1)])
    plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=given)
    eventually(lambda: bool(get(plane, admin, "pods", "-l", "job-name=owner")["items"]))
    plane.kubectl("delete", "job", "owner", "--cascade=background", kubeconfig=admin)
    eventually(lambda: not get(plane, admin, "pods", "-l", "job-name=owner")["items"])
