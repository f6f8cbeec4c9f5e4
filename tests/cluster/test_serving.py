"""The demo's server in a pod with the sidecar, no operator far and wide: it serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.reporting import Report
from tests.cluster.serving import (
    PORT,
    SHARED_FOLDERS,
    answers,
    image,
    server_pod,
    service,
    traffic,
)

from retuned_operator.manifests import SidecarSettings, inject
from retuned_operator.manifests.sidecar import DELIVERY, SIDECAR, SOCKET_DIR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMESPACE = "serving"


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """Return the name of a pod that serves, injected as `kubectl retuned inject` does."""
    settings = SidecarSettings(
        image=image("sidecar", TAG),
        # an address of the services that nobody has: the operator is away
        agent_url=f"https://{cluster.node.addresses.services.replace('.0/24', '.250')}:8443",
        pull_policy="Never",
    )
    template = inject(server_pod(TAG, folders=SHARED_FOLDERS), settings=settings, always=True)
    assert template.reason is None, template.detail
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "demo"}},
            "template": dict(template.pod),
        },
    }
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", given=[made, service(NAMESPACE), deployment])
    ready = ("rollout", "status", "deployment/demo", "-n", NAMESPACE, "--timeout=1s")
    cluster.eventually(lambda: cluster.succeeds(*ready), "the server is ready", within_s=600)
    (found,) = cluster.get("pods", "-n", NAMESPACE, "-l", "app=demo")["items"]
    yield found["metadata"]["name"]
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def url(cluster: Cluster, pod: str) -> str:
    """Return where the service is reached, which takes a moment after it was made."""
    found = cluster.get("service", "demo", "-n", NAMESPACE)["spec"]["clusterIP"]
    return f"http://{found}:{PORT}"


def containers(cluster: Cluster, pod: str) -> dict[str, dict[str, Any]]:
    status = cluster.get("pod", pod, "-n", NAMESPACE)["status"]
    listed = [*status["initContainerStatuses"], *status["containerStatuses"]]
    return {each["name"]: each for each in listed}


def inside(cluster: Cluster, pod: str, container: str, *command: str) -> str:
    return cluster.kubectl("exec", "-n", NAMESPACE, pod, "-c", container, "--", *command)


def test_the_server_answers_with_all_the_tokens_that_were_asked_for(
    cluster: Cluster, url: str, report: Report
) -> None:
    cluster.eventually(lambda: answers(url), "the service answers")
    with traffic(lambda: url) as counted:
        cluster.eventually(lambda: counted.sent >= 50, "fifty requests")
    report.add(counted)
    assert counted.failed == []
    assert counted.tokens == 4 * counted.sent


def test_the_runtime_came_with_the_pod_and_reaches_every_python_in_it(
    cluster: Cluster, pod: str
) -> None:
    assert containers(cluster, pod)[DELIVERY]["state"]["terminated"]["exitCode"] == 0
    found = inside(cluster, pod, "server", "python", "-c",
                   "import sys; print('_retuned_startup' in sys.modules)")  # fmt: skip
    assert found.strip() == "True"


def test_the_sidecar_reaches_the_servers_control_socket_as_another_user(
    cluster: Cluster, pod: str
) -> None:
    # no program of ours: its memory would not fit beside the sidecar's into the container's
    text = (
        "import json, os, pathlib, socket; "
        f"path = min(pathlib.Path('{SOCKET_DIR}').glob('*.sock')); "
        "link = socket.socket(socket.AF_UNIX); link.settimeout(100); link.connect(str(path)); "
        'link.sendall(b\'{"op": "slots"}\\n\'); '
        "answer = json.loads(link.makefile().readline()); "
        "print(json.dumps([os.getuid(), path.stat().st_uid, answer['ok'], len(answer['slots'])]))"
    )
    said = inside(cluster, pod, SIDECAR, "python3", "-S", "-c", text)
    user, owner, ok, slots = json.loads(said)
    assert user != owner, "the server runs as somebody else"
    assert ok
    assert slots > 0


def test_with_the_operator_away_the_sidecar_runs_and_the_server_was_never_restarted(
    cluster: Cluster, pod: str
) -> None:
    found = containers(cluster, pod)
    assert found["server"]["restartCount"] == 0
    assert "running" in found[SIDECAR]["state"], found[SIDECAR]
    assert found[SIDECAR]["restartCount"] == 0, inside(cluster, pod, SIDECAR, "true")


def test_a_sidecar_that_is_killed_comes_back_and_no_request_fails(
    cluster: Cluster, pod: str, url: str, report: Report
) -> None:
    before = containers(cluster, pod)[SIDECAR]["restartCount"]
    with traffic(lambda: url) as counted:
        cluster.kill(pod, SIDECAR, namespace=NAMESPACE)
        cluster.eventually(
            lambda: (
                containers(cluster, pod)[SIDECAR]["restartCount"] > before
                and "running" in containers(cluster, pod)[SIDECAR]["state"]
            ),
            "the sidecar is back",
        )
    assert counted.sent
    report.add(counted)
    assert counted.failed == []
    assert containers(cluster, pod)["server"]["restartCount"] == 0


def test_a_kubelet_that_stops_leaves_the_server_serving(
    cluster: Cluster, pod: str, url: str, report: Report
) -> None:
    with traffic(lambda: url) as counted:
        with cluster.without_kubelet():
            seen = counted.sent
            cluster.eventually(lambda: counted.sent >= seen + 30, "thirty requests without it")
        cluster.eventually(
            lambda: cluster.succeeds("exec", "-n", NAMESPACE, pod, "-c", "server", "--", "true"),
            "the kubelet is back",
        )
    report.add(counted)
    assert counted.failed == []
    assert containers(cluster, pod)["server"]["restartCount"] == 0
