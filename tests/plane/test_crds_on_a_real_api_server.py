"""The API server takes the schemas, fills in what is left out, and refuses what must not be."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.plane.control_plane import ROOT, ControlPlane
from tests.plane.servers import eventually

pytestmark = pytest.mark.plane

DIGEST = "sha256:" + "a" * 64
DECISION: dict[str, Any] = {
    "apiVersion": "retuned.dev/v1alpha1",
    "kind": "SwapDecision",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {
        "proposalRef": {"name": "rmsnorm-1", "uid": "1234"},
        "digest": DIGEST,
        "decision": "Approve",
        "user": "alice",
        "comment": "looked at the numbers",
        "policyGeneration": 1,
        "policyDigest": DIGEST,
    },
}


def apply(plane: ControlPlane, kubeconfig: Path, body: dict[str, Any], *more: str) -> str:
    return plane.kubectl("apply", "-f", "-", *more, kubeconfig=kubeconfig, given=json.dumps(body))


def refused(plane: ControlPlane, kubeconfig: Path, body: dict[str, Any]) -> str:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        apply(plane, kubeconfig, body)
    return str(caught.value.stderr)


def test_there_are_six_and_none_is_without_structure(plane: ControlPlane, admin: Path) -> None:
    found = json.loads(plane.kubectl("get", "crd", "-o", "json", kubeconfig=admin))["items"]
    ours = [crd for crd in found if crd["spec"]["group"] == "retuned.dev"]
    assert len(ours) == 6
    for crd in ours:
        states = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
        assert states["Established"] == "True"
        assert states.get("NonStructuralSchema") != "True", crd["metadata"]["name"]


def test_every_policy_that_ships_is_taken(plane: ControlPlane, admin: Path) -> None:
    shipped = sorted((ROOT / "policies").glob("*.yaml"))
    assert shipped
    for path in shipped:
        plane.kubectl("apply", "--dry-run=server", "-f", str(path), kubeconfig=admin)


def test_a_decision_never_changes_not_even_for_who_may_do_all(
    plane: ControlPlane, admin: Path
) -> None:
    apply(plane, admin, DECISION)
    other = copy.deepcopy(DECISION)
    other["spec"]["decision"] = "Reject"
    assert "a decision never changes" in refused(plane, admin, other)
    assert (
        plane.kubectl("get", "swd", "one", "-o", "jsonpath={.spec.decision}", kubeconfig=admin)
        == "Approve"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "sha256:short"), ("decision", "Maybe"), ("user", ""), ("comment", "x" * 10_000)],
)
def test_a_decision_that_is_none_is_refused(
    plane: ControlPlane, admin: Path, field: str, value: str
) -> None:
    body = copy.deepcopy(DECISION)
    body["metadata"]["name"] = "bad"
    body["spec"][field] = value
    assert f"spec.{field}" in refused(plane, admin, body)


def test_the_audit_log_names_who_decided(plane: ControlPlane, admin: Path) -> None:
    body = copy.deepcopy(DECISION)
    body["metadata"]["name"] = "audited"
    apply(plane, admin, body)

    def found() -> list[str]:
        return [
            each["user"]["username"]
            for each in plane.audited()
            if each["verb"] in ("create", "patch")
            and each.get("objectRef", {}).get("name") == "audited"
            and each["stage"] == "ResponseComplete"
        ]

    eventually(found)  # a line is written after its answer
    assert found() == ["admin"]
