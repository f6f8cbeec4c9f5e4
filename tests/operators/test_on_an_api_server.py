"""What only a real API server can say: it takes our schemas, rules, rights and admission."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operators import examples
from tests.operators.api_server import ApiServer, running
from tests.operators.test_manifests import REQUEST, SETTINGS, TUNED

from retuned.store.policy_files import load_policy
from retuned_operator import schema as crds
from retuned_operator.manifests import (
    decision_policy,
    experiment_namespace,
    freeze_policy,
    job_objects,
    network_policies,
    operator_roles,
    people_roles,
    priority_class,
    quota,
)
from retuned_operator.schema import KINDS, definition_of, read, schema_of
from retuned_operator.schema.structural import filled

pytestmark = [pytest.mark.plane, pytest.mark.slow]
POLICIES = sorted((Path(__file__).parents[2] / "policies").glob("*.yaml"))
_RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("api")) as server:
        for kind in KINDS:
            server.create(definition_of(kind))
        for kind in KINDS:
            server.eventually("GET", f"/apis/retuned.dev/v1alpha1/{kind.plural}")
        for name in ("serving", "retuned", "retuned-experiments"):
            body = experiment_namespace(name)
            server.create(body)
        for body in (*decision_policy(), *freeze_policy(), *people_roles()):
            server.create(body)
        for user, role in (("ada", "retuned-approver"), ("bob", "decider")):
            server.create(binding(user, role))
        server.create(
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "decider"},
                "rules": [
                    {
                        "apiGroups": ["retuned.dev"],
                        "resources": ["swapdecisions"],
                        "verbs": ["create"],
                    }
                ],
            }
        )
        yield server


def binding(user: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": _RBAC}],
    }


def new(body: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Return an example as somebody would make it."""
    body = copy.deepcopy(body)
    metadata = {"name": name or body["metadata"]["name"]}
    if body["metadata"].get("namespace"):
        metadata["namespace"] = "serving"
    return body | {"metadata": metadata}


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_policy_file_is_taken_and_comes_back_as_the_policy_that_it_is(
    server: ApiServer, path: Path
) -> None:
    file = yaml.safe_load(path.read_text(encoding="utf-8"))
    stored = server.create(new(file | {"metadata": {**file["metadata"], "namespace": "x"}}))
    assert read(crds.PolicyObject, stored).stage_policy().spec == load_policy(path).spec


def test_the_servers_defaults_are_those_that_we_reckon_with(server: ApiServer) -> None:
    for kind, body in (
        ("TuningTarget", examples.a_target()),
        ("KernelExperiment", examples.an_experiment()),
        ("SwapProposal", examples.a_swap()),
    ):
        asked = new(body, f"defaults-{kind.lower()}")
        stored = server.create(asked)
        schema = schema_of(next(each for each in KINDS if each.kind == kind))
        assert stored["spec"] == filled(asked, schema)["spec"]


def test_a_policy_that_contradicts_itself_is_refused_with_every_reason(server: ApiServer) -> None:
    gate = {"name": "a", "approvals": {"required": 1, "from": [{"group": "g", "user": "u"}]}}
    spec = {
        "mode": "Enforce",
        "breakGlass": {"enabled": True},
        "gates": [gate, {"name": "a", "approvals": {"required": 1}}],
        "rollout": {"waves": ["50%"]},
    }
    said = server.refusal(new(examples.an_object("KernelTuningPolicy", "bad", spec)))
    for reason in ("names a group", "same name", "either a group or a user", "last wave is 100%"):
        assert reason in said


def change(server: ApiServer, plural: str, name: str, spec: dict[str, Any]) -> tuple[int, str]:
    path = f"/apis/retuned.dev/v1alpha1/namespaces/serving/{plural}/{name}"
    status, answer = server.call("PATCH", path, {"spec": spec})
    return status, str(answer.get("message", ""))


def test_a_plan_and_a_win_never_change_and_an_abort_is_not_taken_back(server: ApiServer) -> None:
    for plural, body, fixed in (
        ("kernelexperiments", examples.an_experiment(), {"gpuModel": "H100"}),
        ("kernelexperiments", examples.an_experiment(), {"batchInvariant": False}),
        ("swapproposals", examples.a_swap(), {"requestedBy": "eve"}),
        ("swapproposals", examples.a_swap(), {"guard": {"bounds": {"M": [1, 65]}}}),
    ):
        name = f"fixed-{next(iter(fixed)).lower()}"
        server.create(new(body, name))
        status, said = change(server, plural, name, fixed)
        assert (status, "never changes" in said) == (422, True), said
        assert change(server, plural, name, {"abort": {"requested": True}})[0] == 200
        for again in ({"abort": {"requested": False}}, {"abort": None}):
            assert change(server, plural, name, again)[0] == 422


def decision(server: ApiServer, swap: str, user: str, **changes: Any) -> dict[str, Any]:
    path = f"/apis/retuned.dev/v1alpha1/namespaces/serving/swapproposals/{swap}"
    uid = server.eventually("GET", path)["metadata"]["uid"]
    usual = {"user": user, "groups": [], "proposalRef": {"name": swap, "uid": uid}}
    body = new(examples.a_decision(**(usual | changes)))
    body["metadata"] = {"generateName": "swd-", "namespace": "serving"}
    return body


def settled(server: ApiServer, swap: str) -> None:
    """Wait until admission works from proposals as they are now: it reads them from a cache."""
    body = decision(server, swap, "ada", digest="sha256:" + "0" * 64)
    deadline = time.monotonic() + 150
    while "not the artifact" not in server.refusal(body, user="ada"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_who_may_approve_does_and_nobody_in_anothers_name(server: ApiServer) -> None:
    server.create(new(examples.a_swap(), "wanted"))
    settled(server, "wanted")
    stored = server.create(decision(server, "wanted", "ada", groups=["sre"]), user="ada")
    server.create(decision(server, "wanted", "bob", decision="Reject"), user="bob")
    refused = (
        ("ada", decision(server, "wanted", "bob"), "another's name"),
        ("ada", decision(server, "wanted", "ada", groups=["root"]), "not in"),
        ("bob", decision(server, "wanted", "bob"), "verb approve"),
        ("ada", decision(server, "wanted", "ada", decision="BreakGlass"), "verb break-glass"),
        ("ada", decision(server, "wanted", "ada", digest=examples.WORLD), "not the artifact"),
        (
            "ada",
            decision(server, "wanted", "ada", proposalRef={"name": "wanted", "uid": "old"}),
            "has been replaced",
        ),
        ("ada", decision(server, "wanted", "ada", policyDigest=None), "names the generation"),
    )
    for user, body, why in refused:
        assert why in server.refusal(body, user=user)
    path = (
        f"/apis/retuned.dev/v1alpha1/namespaces/serving/swapdecisions/{stored['metadata']['name']}"
    )
    status, answer = server.call("PATCH", path, {"spec": {"comment": "else"}})
    assert (status, "never changes" in answer["message"]) == (422, True)
    assert server.call("DELETE", path, user="ada")[0] == 403


def test_nobody_approves_what_they_asked_for(server: ApiServer) -> None:
    server.create(new(examples.a_swap(requestedBy="Ada"), "own"))
    settled(server, "own")
    assert "asked for a swap" in server.refusal(decision(server, "own", "ada"), user="ada")
    server.create(decision(server, "own", "ada", decision="Abort"), user="ada")


def test_every_object_of_the_operator_is_taken(server: ApiServer) -> None:
    for body in (
        priority_class("retuned-experiment"),
        quota(
            "retuned-experiments",
            priority="retuned-experiment",
            gpu_resources=["amd.com/gpu"],
            max_gpus=2,
        ),
        *network_policies("retuned-experiments", endpoint=None),
        *operator_roles(
            "retuned-operator",
            namespace="retuned",
            watched=["serving"],
            experiments="retuned-experiments",
        ),
        *job_objects(REQUEST, SETTINGS),
        *job_objects(TUNED, SETTINGS),
    ):
        server.create(body)


def test_the_operator_may_do_its_work_and_no_more(server: ApiServer) -> None:
    account = {"user": "system:serviceaccount:retuned:retuned-operator"}
    may = (
        ("retuned.dev", "swapproposals", "status", "patch", "serving", "", True),
        ("retuned.dev", "swapdecisions", "", "create", "serving", "", False),
        ("retuned.dev", "kerneltuningpolicies", "", "patch", "serving", "", False),
        ("batch", "jobs", "", "create", "retuned-experiments", "", True),
        ("batch", "jobs", "", "create", "serving", "", False),
        ("", "secrets", "", "list", "retuned", "", False),
        ("", "secrets", "", "get", "retuned", "retuned-webhook-cert", True),
        ("", "pods", "exec", "create", "serving", "", False),
        ("", "pods", "", "list", "serving", "", True),
        ("", "pods", "log", "get", "retuned-experiments", "", True),
        ("", "pods", "log", "get", "serving", "", False),
        ("", "pods", "log", "get", "retuned", "", False),
        ("", "pods", "", "delete", "retuned-experiments", "", False),
        ("", "pods", "exec", "create", "retuned-experiments", "", False),
        ("apps", "deployments", "", "patch", "serving", "", False),
    )
    for group, resource, part, verb, namespace, name, allowed in may:
        asked = {
            "group": group,
            "resource": resource,
            "subresource": part,
            "verb": verb,
            "namespace": namespace,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": account | {"resourceAttributes": asked},
        }
        deadline = time.monotonic() + 150  # the authorizer reads roles from a cache
        while (found := server.create(review)["status"]["allowed"]) is not allowed and allowed:
            assert time.monotonic() < deadline, asked
            time.sleep(0.2)
        assert found is allowed, asked
