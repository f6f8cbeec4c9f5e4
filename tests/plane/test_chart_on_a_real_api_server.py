"""The chart on a real API server: taken, installed, upgraded, rolled back, gone; rights suffice."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import helm as helm
from tests.charts.rendering import CHART, CI, Helm, values_of
from tests.operators import examples
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import TIMEOUTS, eventually, real_api, refusal

from retuned_operator.controllers.proposal import proposal_body
from retuned_operator.kube.client import Api, connect
from retuned_operator.kube.errors import ApiError, Forbidden, NotFound
from retuned_operator.kube.kubeconfig import configuration_of
from retuned_operator.kube.lease import Leader
from retuned_operator.kube.resources import (
    ACCESS_REVIEWS,
    LEASES,
    PODS,
    PROPOSALS,
    REPLICA_SETS,
    SECRETS,
    STATEFUL_SETS,
    TARGETS,
)
from retuned_operator.kube.transport import Transport
from retuned_operator.manifests.replicas import ReplicaTemplate, replica_pod
from retuned_operator.manifests.roles import LEASE
from retuned_operator.manifests.settings import sidecar_settings
from retuned_operator.schema import KINDS, SwapProposal, TuningTarget, read, write
from retuned_operator.webhook.certificate_secret import (
    AUTHORITY,
    SECRET,
    WEBHOOK,
    CertificateRotator,
)

pytestmark = [pytest.mark.plane, pytest.mark.slow]

VALUES = CHART / "ci" / "amd-values.yaml"
NEWER = [path for path in CI if "1.29" not in path.name]
"""Without the one for an API server that still has v1beta1."""
_FOREIGN = ("cert-manager.io/", "monitoring.coreos.com/")
_EVERYTHING = (
    "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,mutatingwebhookconfigurations,priorityclasses,"
    "serviceaccounts,secrets,configmaps,services,deployments,replicasets,pods,"
    "poddisruptionbudgets,networkpolicies,resourcequotas,limitranges,kerneltuningpolicies"
)


class Cluster:
    """A cluster that knows nothing of us, and Helm with all rights on it."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin = plane.admin()

    def helm(self, *arguments: str) -> str:
        """Run Helm; no node would run the Job that rolls swaps back.

        Raises
        ------
        AssertionError
            If it failed, with what it said.
        """
        program = [str(self.plane.programs / "helm"), "--kubeconfig", str(self.admin)]
        if arguments[0] == "upgrade":
            arguments = (*arguments, "--set", "uninstall.rollback=false")
        done = subprocess.run(
            [*program, "--namespace", "retuned", *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *more: str) -> None:
        """Install the chart; the same again where Helm was ahead of the API server.

        Nothing here waits for the release (no node would ever run its pods), and Helm 4 then does
        not wait for definitions either before it makes objects of their kinds.
        """
        command = ("upgrade", "--install", "retuned", str(CHART), "--create-namespace", *more)
        try:
            self.helm(*command, "-f", str(VALUES))
        except AssertionError as error:
            if "ensure CRDs are installed first" not in str(error):
                raise
            self.helm(*command, "-f", str(VALUES))

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self.plane.kubectl(*arguments, kubeconfig=self.admin, given=given)

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def policies(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.items("ktp", "-A")]

    def as_operator(self) -> Api:
        """Return the API server as the operator's own account sees it."""
        token = self.kubectl("create", "token", "retuned-operator", "-n", "retuned").strip()
        body = yaml.safe_load(self.admin.read_text("utf-8"))
        body["users"] = [{"name": "user", "user": {"token": token}}]
        path = self.plane.folder / "operator.kubeconfig"
        path.write_text(yaml.safe_dump(body), "utf-8")
        api = Api(Transport(configuration_of(path), timeouts=TIMEOUTS))
        # the authorizer's caches are a moment behind the roles
        eventually(lambda: refusal(lambda: api.list(PODS, namespace="serving")) is None)
        eventually(lambda: not isinstance(_lease_refused(api), Forbidden))
        return api


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of this file's own: the one of the others has our definitions."""
    folder = tmp_path_factory.mktemp("chart-plane")
    with ControlPlane(folder, plane.programs) as started:
        found = Cluster(started)
        found.kubectl("create", "namespace", "serving")
        yield found


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster with a release, which is gone afterwards."""
    cluster.install()
    yield cluster
    if "retuned" in cluster.helm("list", "--short"):
        cluster.helm("uninstall", "retuned")
    eventually(lambda: not cluster.items("ns", "-l", "app.kubernetes.io/name=retuned"))


@pytest.mark.parametrize("path", NEWER, ids=lambda path: path.stem)
def test_every_object_of_every_example_is_taken(
    plane: ControlPlane, admin: Path, helm: Helm, path: Path
) -> None:
    found = [
        each
        for each in helm.objects(values_of(path))
        if not each["apiVersion"].startswith(_FOREIGN)
    ]
    spaces = {each["metadata"].get("namespace") for each in found} - {None}
    for name in sorted(spaces):
        body = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=body)
    plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-",
        kubeconfig=admin, given=yaml.safe_dump_all(found),
    )  # fmt: skip


def test_a_release_whose_policies_could_not_come_is_mended_by_the_same_command(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    assert cluster.items("crd") == [], "this test is the first in its cluster"
    nowhere = ("--set", "policies[0].name=production", "--set", "policies[0].namespace=nowhere")
    with pytest.raises(AssertionError, match=r'namespaces "nowhere" not found'):
        cluster.install(*nowhere)
    mended: Cluster = request.getfixturevalue("installed")
    assert mended.policies() == ["production"]


def test_policies_come_with_the_first_release_and_through_every_change_of_it(
    installed: Cluster,
) -> None:
    assert installed.policies() == ["production"]
    installed.helm(
        "upgrade", "retuned", str(CHART), "-f", str(VALUES), "--set", "operator.logLevel=debug"
    )
    assert installed.policies() == ["production"]
    (policy,) = installed.items("ktp", "-A")
    assert policy["metadata"]["generation"] == 1, "approvals name the generation"
    installed.helm("rollback", "retuned", "1")
    assert installed.policies() == ["production"]


@pytest.mark.parametrize("before", [[], ["upgrade"], ["rollback"]])
def test_a_policy_that_the_values_no_longer_name_goes(
    installed: Cluster, before: list[str]
) -> None:
    if before:
        installed.helm("upgrade", "retuned", str(CHART), "-f", str(VALUES))
    if before == ["rollback"]:
        installed.helm("rollback", "retuned", "1")
    assert installed.policies() == ["production"]
    installed.helm("upgrade", "retuned", str(CHART), "-f", str(VALUES), "--set", "policies=null")
    assert installed.policies() == []


def test_an_uninstall_leaves_definitions_and_audit_record_and_nothing_else(
    installed: Cluster,
) -> None:
    installed.helm("uninstall", "retuned")
    eventually(lambda: not installed.items("ns", "-l", "app.kubernetes.io/name=retuned"))
    definitions = {each["metadata"]["name"] for each in installed.items("crd")}
    assert definitions == {kind.full_name for kind in KINDS}
    claims = [each["metadata"]["name"] for each in installed.items("pvc", "-A")]
    assert claims == ["retuned-store"]
    left = installed.items(_EVERYTHING, "-A", "-l", "app.kubernetes.io/name=retuned")
    assert [(each["kind"], each["metadata"]["name"]) for each in left] == []


def test_what_was_kept_is_taken_over_by_the_release_that_comes_back(installed: Cluster) -> None:
    installed.helm("uninstall", "retuned")
    eventually(lambda: not installed.items("ns", "-l", "app.kubernetes.io/name=retuned"))
    installed.install()
    assert installed.policies() == ["production"]


def test_an_upgrade_leaves_what_the_operator_wrote_with_its_own_rights_and_an_uninstall_does_not(
    installed: Cluster,
) -> None:
    api = installed.as_operator()
    keeper = CertificateRotator(
        api=api,
        namespace="retuned",
        names=["retuned-webhook.retuned.svc", "retuned-agent.retuned.svc"],
        servers=lambda: ["serving"],
    )
    keeper.step(now=datetime.now(UTC))
    leader = Leader(api, LEASE, namespace="retuned", identity="pod-1")
    assert leader.acquire(threading.Event())
    before = _written(installed)
    assert all(before)
    installed.helm(
        "upgrade", "retuned", str(CHART), "-f", str(VALUES), "--set", "webhook.timeoutSeconds=4"
    )
    assert _written(installed) == before
    keeper.step(now=datetime.now(UTC))
    assert _written(installed) == before
    installed.helm("uninstall", "retuned")
    mine = ("configmap", "-n", "serving", "-o", "name")
    eventually(lambda: AUTHORITY not in installed.kubectl("get", *mine))
    left = installed.kubectl("get", "secrets,leases", "-n", "retuned", "-o", "name")
    assert left == ""
    eventually(lambda: not isinstance(_lease_refused(api), NotFound | None))  # rights are gone
    with pytest.raises(ApiError):  # nor can an operator that is still ending make it again
        api.create(LEASES, {"metadata": {"name": LEASE, "namespace": "retuned"}})


def _lease_refused(api: Api) -> ApiError | None:
    return refusal(lambda: api.get(LEASES, LEASE, namespace="retuned"))


def _written(cluster: Cluster) -> tuple[str, ...]:
    def part(*what: str, path: str) -> str:
        return cluster.kubectl("get", *what, "-o", f"jsonpath={path}")

    return (
        part("secret", SECRET, "-n", "retuned", path="{.data}"),
        part("lease", LEASE, "-n", "retuned", path="{.spec.holderIdentity}"),
        part("configmap", AUTHORITY, "-n", "serving", path="{.data}"),
        part(
            "mutatingwebhookconfiguration",
            WEBHOOK,
            path="{.webhooks[0].clientConfig.caBundle}",
        ),
    )


def test_the_operator_reads_no_other_secret_and_no_pod_elsewhere(installed: Cluster) -> None:
    api = installed.as_operator()
    assert api.list(PODS, namespace="serving").items == ()
    for resource, namespace in ((SECRETS, "retuned"), (SECRETS, "serving"), (PODS, "default")):
        with pytest.raises(Forbidden):
            api.list(resource, namespace=namespace)


def test_the_operator_makes_and_deletes_canary_replicas_and_no_other_pod(
    installed: Cluster,
) -> None:
    values = ("-f", str(VALUES), "--set", "canaryReplicas.enabled=true")
    installed.helm("upgrade", "retuned", str(CHART), *values)
    api, numbers = installed.as_operator(), itertools.count()
    admin = connect(installed.admin)
    target = examples.a_target()
    target["metadata"] = {"name": "chat", "namespace": "serving"}
    made = read(TuningTarget, admin.create(TARGETS, target))
    spec = write(read(SwapProposal, examples.a_swap()).spec)
    # A real owner: Kubernetes deletes a pod whose owner does not exist, at a time of its own.
    proposal = admin.create(PROPOSALS, proposal_body("swp-1", spec, target=made))
    containers = [{"name": "server", "image": "vllm"}]
    template = ReplicaTemplate(
        body={"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": containers}}
    )

    def a_replica(**changes: Any) -> dict[str, Any]:
        body = replica_pod(
            template,
            name=f"swp-1-{next(numbers)}-a",
            pair="swp-1-0",
            namespace="serving",
            proposal="swp-1",
            proposal_uid=proposal["metadata"]["uid"],
        )
        return body | {"metadata": body["metadata"] | changes}

    def is_bounded() -> bool:
        said = refusal(lambda: api.create(PODS, a_replica(labels={"app": "chat"})))
        return isinstance(said, Forbidden) and "canary replicas" in str(said)

    eventually(is_bounded)  # rights and policy take effect a moment later
    foreign: tuple[dict[str, Any], ...] = ({"ownerReferences": []}, {"labels": {}})
    for changes in foreign:
        with pytest.raises(Forbidden, match="canary replicas"):
            api.create(PODS, a_replica(**changes))
    for workloads in (REPLICA_SETS, STATEFUL_SETS):
        with pytest.raises(NotFound):
            api.get(workloads, "nosuch", namespace="serving")
        with pytest.raises(Forbidden):
            api.list(workloads, namespace="serving")
    replica = api.create(PODS, a_replica())
    api.delete(PODS, replica["metadata"]["name"], namespace="serving")
    installed.kubectl("run", "chat-0", "-n", "serving", "--image", "vllm")
    with pytest.raises(Forbidden, match="canary replicas"):
        api.delete(PODS, "chat-0", namespace="serving")
    installed.kubectl("delete", "pod", "chat-0", "-n", "serving", "--grace-period=0", "--force")
    admin.delete(TARGETS, "chat", namespace="serving")


YES = {
    "viewer": {"get swapproposals", "list swapdecisions", "watch tuningfreezes"},
    "approver": {"get swapproposals", "create swapdecisions", "approve swapproposals"},
    "break-glass": {"get swapproposals", "create swapdecisions", "break-glass swapproposals"},
    "admin": {
        "get swapproposals",
        "create kerneltuningpolicies",
        "delete tuningtargets",
        "create tuningfreezes",
        "patch kernelexperiments",
    },
}
NO = {
    "approve swapproposals",
    "break-glass swapproposals",
    "create swapdecisions",
    "update swapdecisions",
    "delete swapdecisions",
    "create swapproposals",
    "create kerneltuningpolicies",
    "patch kernelexperiments",
    "create tuningfreezes",
    "delete tuningtargets",
    "patch swapproposals/status",
}


def test_people_may_do_what_their_role_is_for_and_no_more(installed: Cluster) -> None:
    api = real_api(installed.plane)
    for role in YES:
        installed.kubectl("apply", "-f", "-", given=json.dumps(_bound(role)))
    for role, wanted in YES.items():
        # the authorizer's cache may be a moment behind the bindings
        eventually(partial(_all_allowed, api, role, wanted))
        assert _allowed(api, role, NO - wanted) == set(), role
    for role in YES:
        installed.kubectl("delete", "clusterrolebinding", f"people-{role}")
    api.close()


def _bound(role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"people-{role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"retuned-{role}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": role}],
    }


def _all_allowed(api: Api, user: str, asked: set[str]) -> bool:
    return _allowed(api, user, asked) == asked


def _allowed(api: Api, user: str, asked: set[str]) -> set[str]:
    return {said for said in asked if _may(api, user, said)}


def _may(api: Api, user: str, said: str) -> bool:
    verb, _, what = said.partition(" ")
    resource, _, subresource = what.partition("/")
    attributes = {"group": "retuned.dev", "resource": resource, "subresource": subresource}
    spec = {
        "user": user,
        "resourceAttributes": {**attributes, "verb": verb, "namespace": "serving"},
    }
    answer = api.create(ACCESS_REVIEWS, {"spec": spec})
    return bool(answer["status"]["allowed"])


def test_the_settings_in_the_cluster_are_those_of_the_webhook(installed: Cluster) -> None:
    text = installed.kubectl(
        "get",
        "configmap",
        "retuned-settings",
        "-n",
        "retuned",
        "-o",
        r"jsonpath={.data.operator\.yaml}",
    )
    settings = sidecar_settings(yaml.safe_load(text)["sidecar"], where="operator.yaml")
    assert settings.agent_url == "https://retuned-agent.retuned.svc:8443"
