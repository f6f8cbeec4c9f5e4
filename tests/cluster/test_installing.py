"""The chart on a real cluster: it comes up, and goes without leaving more than it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.installing import NAMESPACE, OPERATOR, installed, uninstall, upgrade, values
from tests.cluster.serving import server_pod

from retuned_operator.manifests.names import INJECT
from retuned_operator.manifests.sidecar import SIDECAR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVERS = "serving-injected"
VALUES = values(TAG)
KINDS = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,priorityclasses"
)


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Cluster]:
    with installed(cluster, VALUES):
        yield cluster


def ours(cluster: Cluster) -> list[str]:
    """Return what of us is there that belongs to no namespace."""
    return [
        line for line in cluster.kubectl("get", KINDS, "-o", "name").split() if "retuned" in line
    ]


def test_an_operator_is_ready_and_the_chart_tests_itself(running: Cluster) -> None:
    running.helm("test", "retuned", "--namespace", NAMESPACE, "--timeout=120s")
    (pod,) = running.get("pods", *OPERATOR, "--field-selector=status.phase=Running")["items"]
    (status,) = pod["status"]["containerStatuses"]
    assert status["ready"]
    assert status["restartCount"] == 0


def test_one_of_the_operators_leads(running: Cluster) -> None:
    leases = running.get("leases", "-n", NAMESPACE)["items"]
    holders = [each["spec"].get("holderIdentity") for each in leases]
    assert len(holders) == 1
    assert holders[0]


def test_a_pod_that_asks_gets_the_sidecar_and_one_that_does_not_gets_none(
    running: Cluster,
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
        running.kubectl("apply", "-f", "-", given=[made])
        running.kubectl("create", "--dry-run=server", "-f", "-", given=pods)
        found = {
            name: running.kubectl("create", "--dry-run=server", "-f", "-", "-o",
                "jsonpath={.spec.initContainers[*].name}", given=[body]).split()
            for name, body in zip(("asks", "silent"), pods, strict=True)
        }  # fmt: skip
    finally:
        running.kubectl("delete", "namespace", SERVERS, "--wait=false")
    assert SIDECAR in found["asks"]
    assert found["silent"] == []


def test_an_upgrade_to_the_same_changes_nothing_that_runs(running: Cluster) -> None:
    before = {each["metadata"]["uid"] for each in running.get("pods", *OPERATOR)["items"]}
    upgrade(running, VALUES)
    after = {each["metadata"]["uid"] for each in running.get("pods", *OPERATOR)["items"]}
    assert before <= after


def test_an_uninstall_leaves_the_definitions_and_nothing_else(running: Cluster) -> None:
    assert ours(running)
    uninstall(running)
    assert ours(running) == []
    left = running.kubectl(
        "get", "deployments,services,configmaps,secrets,leases,roles,rolebindings,"
        "networkpolicies,poddisruptionbudgets,pods", "-n", NAMESPACE, "-o", "name",
    ).split()  # fmt: skip
    assert left == ["configmap/kube-root-ca.crt"]
    definitions = [
        each["metadata"]["name"]
        for each in running.get("crds")["items"]
        if each["spec"]["group"] == "retuned.dev"
    ]
    assert len(definitions) == 6
