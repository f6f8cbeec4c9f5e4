"""A fleet that is watched: what people see of it, and what goes on when parts of us are away."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.installing import OPERATOR, installed, upgrade, values
from tests.cluster.reporting import Report
from tests.cluster.serving import (
    PORT,
    SHARED_FOLDERS,
    Counted,
    ask,
    server_pod,
    service,
    traffic,
)

from retuned_operator.manifests.names import INJECT
from retuned_operator.manifests.sidecar import SIDECAR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMESPACE = "chat"
TARGET: dict[str, Any] = {
    "apiVersion": "retuned.dev/v1alpha1",
    "kind": "TuningTarget",
    "metadata": {"name": "demo", "namespace": NAMESPACE, "labels": {"env": "prod"}},
    "spec": {
        "selector": {"matchLabels": {"app": "demo"}},
        "container": "server",
        "framework": "torch",
        "gpu": {"vendor": "amd", "model": "MI300X"},
        "mode": "Observe",
    },
}


def deployment() -> dict[str, Any]:
    template = server_pod(TAG, folders=SHARED_FOLDERS)
    template["metadata"]["annotations"] = {INJECT: "true"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "demo"}},
            "template": template,
        },
    }


@dataclass(frozen=True, slots=True)
class Fleet:
    """One target with one pod, and traffic that began when the pod was ready."""

    cluster: Cluster
    pod: str
    counted: Counted

    def server(self) -> dict[str, Any]:
        """Return the pod of the server, as the cluster tells it."""
        return self.cluster.get("pod", self.pod, "-n", NAMESPACE)

    def status(self) -> dict[str, Any]:
        """Return what the operator says of the target."""
        found = self.cluster.get("tuningtarget", "demo", "-n", NAMESPACE)
        status: dict[str, Any] = found.get("status", {})
        return status

    def served(self, count: int) -> Callable[[], bool]:
        """Return whether so many more requests were answered, when asked."""
        before = self.counted.sent
        return lambda: self.counted.sent >= before + count


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, report: Report) -> Iterator[Fleet]:
    with installed(cluster, values(TAG)):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.kubectl(
            "apply", "-f", "-", given=[namespace, service(NAMESPACE), TARGET, deployment()]
        )
        ready = ("rollout", "status", "deployment/demo", "-n", NAMESPACE, "--timeout=1s")
        took = cluster.eventually(lambda: cluster.succeeds(*ready), "it is ready", within_s=240)
        report.seconds["injected server ready"] = took
        (pod,) = cluster.get("pods", "-n", NAMESPACE, "-l", "app=demo")["items"]
        address = cluster.get("service", "demo", "-n", NAMESPACE)["spec"]["clusterIP"]
        url = f"http://{address}:{PORT}"
        cluster.eventually(lambda: ask(url, prompt=4, tokens=1) == 1, "the service answers")
        with traffic(lambda: url) as counted:
            yield Fleet(cluster, pod["metadata"]["name"], counted)
        report.add(counted)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_the_webhook_put_the_sidecar_into_the_pod(fleet: Fleet) -> None:
    found = {each["name"]: each for each in fleet.server()["status"]["initContainerStatuses"]}
    assert "running" in found[SIDECAR]["state"]


def test_the_operator_hears_of_the_pod_and_of_its_kernels(fleet: Fleet, report: Report) -> None:
    took = fleet.cluster.eventually(
        lambda: fleet.status().get("reportingPods") == 1, "the sidecar reports", within_s=120
    )
    report.seconds["sidecar reports"] = took
    fleet.cluster.eventually(
        lambda: fleet.status().get("sampledKernels", 0) > 0, "a profile came", within_s=180
    )


def test_a_person_sees_it_with_the_rights_of_a_viewer(fleet: Fleet) -> None:
    viewer = fleet.cluster.person("vera", "retuned-viewer", namespace=NAMESPACE)
    said = fleet.cluster.retuned("status", "-n", NAMESPACE, "-o", "json", kubeconfig=viewer)
    assert "demo" in json.dumps(json.loads(said))


def test_with_the_operator_killed_the_server_serves_and_another_operator_comes(
    fleet: Fleet,
) -> None:
    before = {each["metadata"]["uid"] for each in fleet.cluster.get("pods", *OPERATOR)["items"]}
    fleet.cluster.kubectl("delete", "pods", *OPERATOR, "--grace-period=0", "--force")
    fleet.cluster.eventually(fleet.served(20), "requests go on")

    def replaced() -> bool:
        pods = fleet.cluster.get("pods", *OPERATOR)["items"]
        return any(
            each["metadata"]["uid"] not in before
            and all(
                c["ready"] for c in each["status"].get("containerStatuses", ()) or [{"ready": 0}]
            )
            for each in pods
        )

    fleet.cluster.eventually(replaced, "another operator is ready", within_s=120)


def test_with_the_api_server_away_the_server_serves_and_all_come_back(fleet: Fleet) -> None:
    fleet.cluster.plane.stop_process("kube-apiserver", with_signal=signal.SIGKILL)
    away = time.monotonic()
    served = fleet.served(50)
    while not served() or time.monotonic() - away < 20:
        time.sleep(0.2)
    fleet.cluster.plane.start_api()

    def heard() -> bool:
        try:
            return fleet.status().get("reportingPods") == 1
        except subprocess.CalledProcessError:
            return False

    fleet.cluster.eventually(heard, "the operator tells of the pod again", within_s=180)


def test_an_upgrade_in_the_middle_of_traffic_keeps_the_servers_pod(fleet: Fleet) -> None:
    uid = fleet.server()["metadata"]["uid"]
    upgrade(fleet.cluster, {**values(TAG), "commonAnnotations": {"tests/again": "yes"}})
    assert fleet.server()["metadata"]["uid"] == uid


def test_after_all_of_that_no_request_has_failed_and_nothing_was_restarted(fleet: Fleet) -> None:
    (server,) = fleet.server()["status"]["containerStatuses"]
    assert server["restartCount"] == 0
    assert fleet.counted.failed == []
    assert fleet.counted.sent > 100
