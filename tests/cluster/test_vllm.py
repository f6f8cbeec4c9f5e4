"""A real vLLM in a real pod: its tunable is found, tuned, swapped, proven and taken back.

The tests are a story and run in their order. The server has two requests under way from the policy
to the uninstall; none may fail, and answers to fixed prompts stay the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.fleet import EXPERIMENTS, injected
from tests.cluster.installing import installed, uninstall, upgrade, values
from tests.cluster.reporting import Report
from tests.cluster.serving import PORT, Counted, service
from tests.cluster.vllm_server import NAME, NAMESPACE, Server, archive, deployment, image

from retuned_operator.manifests.server_container import SERVER
from retuned_operator.manifests.sidecar import SIDECAR

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.slow]

TARGET: Mapping[str, Any] = {
    "apiVersion": "retuned.dev/v1alpha1",
    "kind": "TuningTarget",
    "metadata": {"name": "llm", "namespace": NAMESPACE},
    "spec": {
        "selector": {"matchLabels": {"app": NAME}},
        "container": "server",
        "framework": "vllm",
        "gpu": {"vendor": "cpu", "model": "MI300X"},
        "mode": "Swap",
    },
}
POLICY: Mapping[str, Any] = {
    "name": "one-person",
    "namespace": NAMESPACE,
    "spec": {
        "priority": 1,
        "mode": "Enforce",
        "experiments": {"pauseWhen": {"sloAlertFiring": False}},
        "validation": {"minSpeedup": 1.02, "confidence": 0.99},
        "gates": [{"name": "one", "approvals": {"required": 1}}],
        "liveProof": {"mode": "required", "longBlocks": 0},
        "rollout": {
            "canary": {"bake": "0s"},
            "waves": ["100%"],
            "minInterval": "0s",
            "postPromotionWatch": "5s",
            "analysis": {"interval": "2s", "inconclusiveLimit": 1000},
        },
    },
}


def given(*policies: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values of the chart."""
    found = dict(values(TAG))
    found["sidecar"] = {**found["sidecar"], "windowSeconds": 5, "settleSeconds": 1}
    lab = {"cpu": "400m", "memory": "3Gi", "work": "1Gi"}
    found["experiments"] = found["experiments"] | {
        "gpuResources": {"cpu": "amd.com/gpu"},
        "sizes": dict.fromkeys(("compile", "generate", "search", "verify"), lab),
    }
    return found | {"policies": [dict(each) for each in policies]}


@pytest.fixture(scope="module")
def server(
    cluster: Cluster, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    began_s = time.monotonic()
    file = archive(tmp_path_factory.mktemp("vllm"))
    report.seconds["vLLM's image made"] = time.monotonic() - began_s
    cluster.load(file)
    file.unlink()  # gigabytes
    report.seconds["made and loaded"] = time.monotonic() - began_s
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", given=[space])
    with installed(cluster, given()):
        cluster.kubectl("apply", "-f", "-", given=[service(NAMESPACE), TARGET])
        cluster.eventually(
            lambda: injected(cluster, namespace=NAMESPACE) != "", "who asks gets a sidecar"
        )
        cluster.kubectl("apply", "-f", "-", given=[deployment(cluster.by_digest(image()))])
        ready = ("rollout", "status", f"deployment/{NAME}", "-n", NAMESPACE, "--timeout=1s")
        report.seconds["vLLM ready"] = cluster.eventually(
            lambda: cluster.succeeds(*ready), "vLLM is ready", within_s=900
        )
        (pod,) = cluster.get("pods", "-n", NAMESPACE, "-l", f"app={NAME}")["items"]
        address = cluster.get("service", NAME, "-n", NAMESPACE)["spec"]["clusterIP"]
        yield Server(cluster, pod["metadata"]["name"], f"http://{address}:{PORT}")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def before(server: Server) -> list[str]:
    """Answers before anything was changed."""
    return server.digest()


@pytest.fixture(scope="module")
def requests(server: Server, before: list[str], report: Report) -> Iterator[Counted]:
    with server.traffic() as counted:
        yield counted
    report.add(counted)


def test_vllm_serves_beside_the_sidecar_and_the_operator_hears_of_it(
    server: Server, before: list[str], report: Report
) -> None:
    assert server.digest() == before
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
    server: Server, requests: Counted, report: Report
) -> None:
    report.seconds["tunable of vLLM listed"] = server.cluster.eventually(
        lambda: bool(server.state()), "its tunable is listed", within_s=600
    )
    assert server.state()["reason"] == "no-policy", "the status says why there is no experiment"
    assert requests.failed == []


def test_with_a_policy_one_experiment_runs_in_a_pod_with_the_servers_image(
    server: Server, requests: Counted, report: Report
) -> None:
    upgrade(server.cluster, given(POLICY))
    pods: list[dict[str, Any]] = []

    def begun() -> bool:
        pods[:] = server.cluster.get("pods", "-n", EXPERIMENTS)["items"]
        return bool(pods)

    report.seconds["policy to experiment"] = server.cluster.eventually(
        begun, "an experiment has a pod", within_s=600
    )
    containers = {each["name"]: each for each in pods[0]["spec"]["containers"]}
    assert containers[SERVER]["image"] == server.cluster.by_digest(image())
    report.seconds["experiment to proposal"] = server.cluster.eventually(
        lambda: bool(server.proposal()), "a table is proposed", within_s=900
    )
    assert server.proposal()["spec"]["speedup"]["lower"] > 1.5
    assert server.table() == {}, "nothing is swapped before a person has agreed"
    assert requests.failed == []


def test_an_approved_table_is_in_force_and_live_traffic_shows_that_it_helps(
    server: Server, requests: Counted, report: Report
) -> None:
    server.cluster.eventually(lambda: server.phase() == "AwaitingApproval", "people are asked")
    proposal = server.proposal()
    person = server.cluster.person("ada", "retuned-approver", namespace=NAMESPACE)
    digest = proposal["spec"]["artifact"]["digest"]
    server.cluster.retuned(
        "approve", proposal["metadata"]["name"], "-n", NAMESPACE, "--yes",
        "--digest", digest, "-m", "measured",
        kubeconfig=person,
    )  # fmt: skip
    report.seconds["approval to table"] = server.cluster.eventually(
        lambda: server.table().get("artifact") == digest, "the server has the table"
    )
    report.seconds["table to verdict"] = server.cluster.eventually(
        lambda: server.phase() in ("Promoted", "RolledBack"), "live traffic decides", within_s=900
    )
    (proof,) = server.proposal()["status"]["liveProofs"]
    assert proof["verdict"] == "helps", proof
    assert server.phase() == "Promoted"
    report.note_phases(server.proposal())
    report.note(proposed=1, promoted=1)
    assert server.table()["matched"] > 0
    assert requests.failed == []


def test_a_promoted_table_changes_no_answer(server: Server, before: list[str]) -> None:
    assert server.digest() == before


def test_an_uninstall_takes_the_table_back_and_the_server_goes_on(
    server: Server, before: list[str], requests: Counted
) -> None:
    uninstall(server.cluster)
    assert server.digest() == before
    pod = server.cluster.get("pod", server.pod, "-n", NAMESPACE)
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    assert server.table() == {}, "the server's own choice is in force again"
    assert requests.tokens > 0
    assert requests.failed == []
