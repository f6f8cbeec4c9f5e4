"""The chart on a real cluster: it comes up, and goes without leaving more than it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.cluster import MODEL, Cluster
from tests.cluster.conftest import TAG
from tests.cluster.images import REGISTRY
from tests.cluster.serving import server_pod
from tests.plane.control_plane import ROOT

from retuned_operator.manifests.names import INJECT
from retuned_operator.manifests.sidecar import SIDECAR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHART = ROOT / "charts" / "retuned"
NAMESPACE = "retuned-system"
SERVERS = "serving-injected"
SMALL = {"cpu": "500m", "memory": "1Gi", "work": "1Gi"}
VALUES: dict[str, Any] = {
    "image": {"registry": REGISTRY, "pullPolicy": "Never"},
    "operator": {"image": {"tag": TAG}, "resources": {"requests": {"cpu": "100m"}}},
    "sidecar": {"image": {"tag": TAG}},
    "experiments": {
        "image": {"tag": TAG},
        "gpuModels": {"MI300X": MODEL},
        "sizes": dict.fromkeys(("compile", "generate", "search", "verify"), SMALL),
    },
    "store": {"persistent": False},  # the cluster has nobody who makes volumes
}
KINDS = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,priorityclasses"
)


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    cluster.helm(
        "install", "retuned", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
        "--wait", "--timeout=180s", given=VALUES,
    )  # fmt: skip
    yield cluster
    cluster.helm("uninstall", "retuned", "--namespace", NAMESPACE, "--wait", "--timeout=120s",
                 "--ignore-not-found")  # fmt: skip


def ours(cluster: Cluster) -> list[str]:
    """Return what of us is there that belongs to no namespace."""
    return [
        line for line in cluster.kubectl("get", KINDS, "-o", "name").split() if "retuned" in line
    ]


def test_an_operator_is_ready_and_the_chart_tests_itself(installed: Cluster) -> None:
    installed.helm("test", "retuned", "--namespace", NAMESPACE, "--timeout=120s")
    (pod,) = installed.get(
        "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator",
        "--field-selector=status.phase=Running",
    )["items"]  # fmt: skip
    (status,) = pod["status"]["containerStatuses"]
    assert status["ready"]
    assert status["restartCount"] == 0


def test_one_of_the_operators_leads(installed: Cluster) -> None:
    leases = installed.get("leases", "-n", NAMESPACE)["items"]
    holders = [each["spec"].get("holderIdentity") for each in leases]
    assert len(holders) == 1
    assert holders[0]


def test_a_pod_that_asks_gets_the_sidecar_and_one_that_does_not_gets_none(
    installed: Cluster,
) -> None:
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SERVERS}}
    asks = server_pod(TAG)
    asks["metadata"]["annotations"] = {INJECT: "true"}
    silent = server_pod(TAG)
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": body["metadata"] | {
            "name": name, "namespace": SERVERS}, "spec": body["spec"]}
        for name, body in (("asks", asks), ("silent", silent))
    ]  # fmt: skip
    try:
        installed.kubectl("apply", "-f", "-", given=[made])
        installed.kubectl("create", "--dry-run=server", "-f", "-", given=pods)
        found = {
            name: installed.kubectl("create", "--dry-run=server", "-f", "-", "-o",
                "jsonpath={.spec.initContainers[*].name}", given=[body]).split()
            for name, body in zip(("asks", "silent"), pods, strict=True)
        }  # fmt: skip
    finally:
        installed.kubectl("delete", "namespace", SERVERS, "--wait=false")
    assert SIDECAR in found["asks"]
    assert found["silent"] == []


def test_an_upgrade_to_the_same_changes_nothing_that_runs(installed: Cluster) -> None:
    listed = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")
    before = {each["metadata"]["uid"] for each in installed.get(*listed)["items"]}
    installed.helm("upgrade", "retuned", str(CHART), "--namespace", NAMESPACE, "--wait",
                   "--timeout=120s", given=VALUES)  # fmt: skip
    after = {each["metadata"]["uid"] for each in installed.get(*listed)["items"]}
    assert before <= after


def test_an_uninstall_leaves_the_definitions_and_nothing_else(installed: Cluster) -> None:
    assert ours(installed)
    installed.helm("uninstall", "retuned", "--namespace", NAMESPACE, "--wait", "--timeout=120s")
    assert ours(installed) == []
    left = installed.kubectl(
        "get", "deployments,services,configmaps,secrets,leases,roles,rolebindings,"
        "networkpolicies,poddisruptionbudgets,pods", "-n", NAMESPACE, "-o", "name",
    ).split()  # fmt: skip
    assert left == ["configmap/kube-root-ca.crt"]
    definitions = [
        each["metadata"]["name"]
        for each in installed.get("crds")["items"]
        if each["spec"]["group"] == "retuned.dev"
    ]
    assert len(definitions) == 6
