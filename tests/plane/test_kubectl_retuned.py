"""``kubectl retuned`` as a plugin of kubectl, by people with roles, on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.operators.examples import ARTIFACT, a_swap
from tests.operators.kubectl.conftest import POLICY
from tests.plane.control_plane import ControlPlane
from tests.plane.reviewing import admission_knows, freezes_are_judged, rights_are_known
from tests.plane.servers import eventually, real_api

from retuned_operator.kube.client import Api
from retuned_operator.kube.resources import DECISIONS, POLICIES, PROPOSALS
from retuned_operator.manifests import decision_policy, freeze_policy, people_roles
from retuned_operator.schema import PolicyObject, read

pytestmark = pytest.mark.plane

PLACE = "deciding"
PEOPLE = {"ada": ("gpu-platform",), "grace": ("sre-oncall", "sre-leads"), "eve": ("interns",)}
BOUND = {
    "gpu-platform": "retuned-approver",
    "sre-oncall": "retuned-approver",
    "sre-leads": "retuned-admin",
    "interns": "retuned-viewer",
}
YES = ("--yes", "--digest", ARTIFACT, "-m", "looks right")


def binding(group: str) -> dict[str, Any]:
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"deciding-{group}"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": BOUND[group]},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
    }


@pytest.fixture(scope="module")
def api(plane: ControlPlane, admin: Path) -> Iterator[Api]:
    """Return the administrator's view of a cluster with our rules and roles."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}
    rules = [*decision_policy(), *freeze_policy()]
    bodies = [namespace, *people_roles(), *map(binding, BOUND), *rules]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    force = ("--server-side", "--force-conflicts")
    plane.kubectl("apply", *force, "-f", "-", kubeconfig=admin, given=given)
    found = real_api(plane)
    eventually(lambda: rights_are_known(found, BOUND))
    eventually(lambda: freezes_are_judged(found))
    yield found
    found.close()
    gone = json.dumps({"apiVersion": "v1", "kind": "List", "items": [namespace, *rules]})
    plane.kubectl("delete", "--wait=false", "-f", "-", kubeconfig=admin, given=gone)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the plugin, under the names that kubectl looks for."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, does in (("kubectl-retuned", "main"), ("kubectl_complete-retuned", "complete")):
        path = folder / name
        path.write_text(
            f"#!{sys.executable}\nfrom retuned_operator.kubectl import {does}\n{does}()\n"
        )
        path.chmod(0o755)
    return folder


class Person:
    """Somebody at a terminal."""

    def __init__(self, plane: ControlPlane, name: str, plugins: Path) -> None:
        self._kubectl = plane.programs / "kubectl"
        kubeconfig = plane.kubeconfig(name, groups=PEOPLE[name])
        self._env = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{plugins}:{os.environ['PATH']}",
        }

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._kubectl, "retuned", *args],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def complete(self, *args: str) -> str:
        done = subprocess.run(
            [self._kubectl, "__complete", "retuned", *args],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout


@pytest.fixture
def ada(plane: ControlPlane, plugins: Path, api: Api) -> Person:
    return Person(plane, "ada", plugins)


@pytest.fixture
def grace(plane: ControlPlane, plugins: Path, api: Api) -> Person:
    return Person(plane, "grace", plugins)


@pytest.fixture
def eve(plane: ControlPlane, plugins: Path, api: Api) -> Person:
    return Person(plane, "eve", plugins)


def proposal(api: Api, name: str, **spec: Any) -> str:
    """Make a proposal that waits under a policy; return its full name."""
    about = {"metadata": {"name": "prod", "namespace": PLACE}, "spec": POLICY}
    policy = read(PolicyObject, api.apply(POLICIES, about))
    expires = (datetime.now(UTC) + timedelta(hours=20)).isoformat()
    body = a_swap(expiresAt=expires, **spec) | {"metadata": {"name": name, "namespace": PLACE}}
    api.create(PROPOSALS, body)
    gate = {
        "state": "waiting",
        "reason": "missing-approvals",
        "name": "two",
        "policy": f"{PLACE}/prod",
        "policyGeneration": policy.metadata.generation,
        "policyDigest": policy.stage_policy().digest,
        "required": 2,
        "missing": 2,
    }
    status = {"phase": "AwaitingApproval", "gate": gate}
    api.patch_status(PROPOSALS, name, status=status, namespace=PLACE)
    eventually(lambda: admission_knows(api, name, namespace=PLACE))
    return f"{PLACE}/{name}"


def said(api: Api, name: str) -> list[tuple[str, str]]:
    return [
        (each["spec"]["decision"], each["spec"]["user"])
        for each in api.list(DECISIONS, namespace=PLACE).items
        if f"{PLACE}/{each['spec']['proposalRef']['name']}" == name
    ]


def test_two_people_approve_and_the_audit_log_knows_who(
    plane: ControlPlane, api: Api, ada: Person, grace: Person
) -> None:
    name = proposal(api, "swp-two")
    for person in (ada, grace):
        done = person.run("approve", name, *YES)
        assert done.returncode == 0, done.stderr
    assert sorted(said(api, name)) == [("Approve", "ada"), ("Approve", "grace")]

    def users() -> set[str]:
        return {
            line["user"]["username"]
            for line in plane.audited()
            if line.get("objectRef", {}).get("resource") == "swapdecisions"
            and line["verb"] == "create"
            and line.get("objectRef", {}).get("namespace") == PLACE
            and line.get("requestObject", {}).get("spec", {}).get("decision") == "Approve"
        }

    eventually(lambda: len(users()) > 1)  # a line is written after its answer
    assert users() == {"ada", "grace"}


def test_whoever_asked_for_a_swap_cannot_approve_it(api: Api, ada: Person) -> None:
    name = proposal(api, "swp-own", requestedBy="ada")
    done = ada.run("approve", name, *YES)
    assert done.returncode == 1
    assert "the user who asked for a swap cannot approve it" in done.stderr
    assert "you requested this swap yourself" in done.stderr
    assert said(api, name) == []
    assert ada.run("reject", name, "-m", "not good enough").returncode == 0


def test_who_may_only_look_is_told_which_role_is_missing(api: Api, eve: Person) -> None:
    name = proposal(api, "swp-look")
    assert eve.run("proposals", "-A").returncode == 0
    done = eve.run("approve", name, *YES)
    assert done.returncode == 1
    assert "ask for the ClusterRole retuned-approver" in done.stderr
    assert eve.run("freeze").returncode == 1


def test_breaking_glass_needs_its_own_verb(api: Api, ada: Person) -> None:
    name = proposal(api, "swp-glass")
    done = ada.run("approve", name, "--break-glass", *YES)
    assert done.returncode == 1
    assert "ClusterRole retuned-break-glass" in done.stderr


def test_a_whole_cluster_is_frozen_seen_and_thawed(grace: Person, ada: Person, api: Api) -> None:
    done = grace.run("freeze", "-m", "launch day", "-o", "json")
    assert done.returncode == 0, done.stderr
    name = json.loads(done.stdout)["freeze"]["id"]
    assert "FROZEN by grace" in ada.run("status", "-A").stdout
    assert ada.run("thaw", name).returncode == 1
    assert grace.run("thaw", name).returncode == 0


def test_an_abort_and_a_rollback_are_words_that_an_approver_may_say(api: Api, ada: Person) -> None:
    name = proposal(api, "swp-abort")
    assert ada.run("abort", name).returncode == 0
    assert said(api, name) == [("Abort", "ada")]
    again = ada.run("abort", name, "-o", "json")
    assert json.loads(again.stdout)["already_said"] is True


def test_show_and_list_read_what_a_real_server_returns(api: Api, eve: Person) -> None:
    name = proposal(api, "swp-seen")
    body = json.loads(eve.run("show", name, "-o", "json").stdout)
    assert (body["artifact"], body["phase"]) == (ARTIFACT, "AwaitingApproval")
    assert body["unreadable"] == []
    assert "swp-seen" in eve.run("proposals", "-n", PLACE).stdout


def test_kubectl_itself_completes_our_words(api: Api, eve: Person) -> None:
    eventually(lambda: "approve" in eve.complete("appr"))
    eventually(lambda: "json" in eve.complete("proposals", "-o", "js"))
