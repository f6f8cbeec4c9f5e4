"""Kubernetes itself collects what is ours: nothing of it is held up, with no operator there."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.operators import examples
from tests.plane.control_plane import ControlPlane

from retuned_operator.controllers.proposal import proposal_body
from retuned_operator.kube.client import Api, connect
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import NAMESPACES, PROPOSALS, TARGETS
from retuned_operator.schema import SwapProposal, TuningTarget, read, write

pytestmark = pytest.mark.plane
_PATIENCE_S = 200.0


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not reached():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.1)


def is_gone(plane: ControlPlane, admin: Path, *what: str) -> bool:
    try:
        plane.kubectl("get", *what, kubeconfig=admin)
    except subprocess.CalledProcessError as error:
        return "NotFound" in str(error.stderr)
    return False


def at_canary(api: Api, namespace: str) -> None:
    """Make a target with a proposal whose canary is under way."""
    api.create(
        NAMESPACES,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
    )
    target = examples.a_target()
    target["metadata"] = {"name": "chat", "namespace": namespace}
    made = read(TuningTarget, api.create(TARGETS, target))
    spec = read(SwapProposal, examples.a_swap()).spec
    body = api.create(PROPOSALS, proposal_body("swp-1", write(spec), target=made))
    at = "2026-03-02T10:00:00Z"
    told = {"name": "chat-0", "uid": "u-0", "wants": "swap", "epoch": 2, "since": at, "done": True}
    rollout = {"startedAt": at, "waveStartedAt": at, "lastSwapAt": at, "pods": [told]}
    api.patch_status(
        PROPOSALS,
        "swp-1",
        status={"phase": "Canary", "rollout": rollout},
        namespace=namespace,
        version=body["metadata"]["resourceVersion"],
    )


def test_a_namespace_goes_while_a_swap_is_under_way_in_it(plane: ControlPlane, admin: Path) -> None:
    at_canary(connect(admin), "leaving")
    plane.kubectl("delete", "namespace", "leaving", "--wait=false", kubeconfig=admin)
    until(lambda: is_gone(plane, admin, "namespace", "leaving"))


def test_a_target_goes_at_once_and_takes_its_proposals_along(
    plane: ControlPlane, admin: Path
) -> None:
    api = connect(admin)
    at_canary(api, "staying")
    plane.kubectl("delete", "tuningtarget", "chat", "-n", "staying", kubeconfig=admin)
    with pytest.raises(NotFound):
        api.get(TARGETS, "chat", namespace="staying")
    until(lambda: is_gone(plane, admin, "swapproposal", "swp-1", "-n", "staying"))
    left = json.loads(
        plane.kubectl("get", "swapproposals", "-n", "staying", "-o", "json", kubeconfig=admin)
    )
    assert left["items"] == []
