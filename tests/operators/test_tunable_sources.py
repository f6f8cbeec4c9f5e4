"""What experiments on tunables get in a cluster: report, image and table of the servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.expect import raises_code
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.test_tunables import NAME, OPEN, SOURCE, TARGET, post, record

from retuned.errors import Refused
from retuned_operator.controllers.ports import ProvenTable
from retuned_operator.kube.resources import PODS, TARGETS
from retuned_operator.store.tunables import PodTunables
from retuned_operator.tunable_sources import ClusterTunables, image_of

DIGEST = "registry.example/vllm@sha256:" + "a" * 64
AXES = {"rows": 8192, "sequences": 1, "decode": 0, "longest": 8192}
ENVIRONMENT = {
    "executable": "/opt/venv/bin/python3",
    "path": ["/opt/venv/lib"],
    "variables": {"VLLM_USE_V1": "1"},
    "versions": {"torch": "2.11.0", "triton": "3.6.0", "vllm": "0.26.0"},
    "device": None,
}


def text(**changed: Any) -> str:
    report = {
        "id": NAME,
        "family": "attention",
        "kernel": "kernel_unified_attention",
        "module": "vllm.attention",
        "source": SOURCE,
        "space": {"parameters": {"TILE_SIZE": [16, 32]}},
        "asked": [{"axes": AXES, "launches": 900, "captured": 2, "sizes": [16]}],
        "ways": {"next-call": "on", "recapture": "on"},
    }
    recipe = {"tunable": NAME, "family": "attention", "axes": AXES, "call": {"arguments": []}}
    body = {"report": report, "environment": ENVIRONMENT, "recipes": [recipe]}
    return json.dumps(body | changed)


def pod(image: str = DIGEST, **spec: Any) -> dict[str, Any]:
    return {
        "spec": {"containers": [{"name": "server", "image": "vllm:latest"}], **spec},
        "status": {"containerStatuses": [{"name": "server", "imageID": image}]},
    }


def an_image(*pods: dict[str, Any]) -> Any:
    return image_of(list(pods), container="server", python="/usr/bin/python3")


def test_the_image_is_the_one_that_the_nodes_run() -> None:
    secrets = [{"name": "pull"}]
    found = an_image(
        pod(imagePullSecrets=secrets, runtimeClassName="nvidia"),
        pod("docker-pullable://" + DIGEST, imagePullSecrets=secrets, runtimeClassName="nvidia"),
    )
    assert (found.image, found.python) == (DIGEST, "/usr/bin/python3")
    assert (found.pull_secrets, found.runtime_class, found.user_id) == (("pull",), "nvidia", None)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_runs_no_image(phase: str) -> None:
    ended = pod(DIGEST[:-1] + "b")
    ended["status"]["phase"] = phase
    assert an_image(pod(), ended).image == DIGEST


@pytest.mark.parametrize(
    ("own", "pods", "user"),
    [(1000, 2000, 1000), (None, 2000, 2000), (0, 2000, None), (None, None, None)],
)
def test_the_user_is_the_containers_and_never_root(
    own: int | None, pods: int | None, user: int | None
) -> None:
    body = pod(securityContext={"runAsUser": pods})
    body["spec"]["containers"][0]["securityContext"] = {"runAsUser": own}
    assert an_image(body).user_id == user


@pytest.mark.parametrize(
    ("pods", "code"),
    [
        ([pod(), pod(DIGEST[:-1] + "b")], "server-image-differs"),
        ([pod("sha256:" + "a" * 64)], "server-image-invalid"),
        ([pod("")], "server-image-invalid"),
        ([], "server-image-invalid"),
    ],
)
def test_an_image_that_no_experiment_can_run_is_refused(
    pods: list[dict[str, Any]], code: str
) -> None:
    with raises_code(Refused, code):
        an_image(*pods)


# --- from a cluster -------------------------------------------------------------------------------


class World:
    """A target whose pods run one image and post a tunable."""

    def __init__(self, **changed: Any) -> None:
        self.cluster = Cluster(OPEN)
        self.cluster.operator.sync()
        for body in self.cluster.all(PODS):
            status = {"containerStatuses": [{"name": "server", "imageID": DIGEST}]}
            known = body | {"status": body.get("status", {}) | status}
            self.cluster.operator.stores[PODS].put(known)
        self.posts = PodTunables()
        self.posts.take(record(), post(text=text(**changed)), at=OPEN)
        self.tables: dict[str, ProvenTable] = {}
        self.sources = ClusterTunables(
            self.posts, self.cluster.operator.world.caches, table=self.tables.get
        )


def test_an_experiment_gets_what_the_newest_pod_posted() -> None:
    found = World().sources.source(TARGET, NAME)
    assert found is not None
    assert found.server.image == DIGEST
    assert found.server.python == ENVIRONMENT["executable"]
    inputs = found.inputs
    assert inputs.report.id == NAME
    assert inputs.measured_in.arch == "gfx942"
    assert inputs.environment.versions["vllm"] == "0.26.0"
    assert [each.axes for each in inputs.recipes] == [AXES]
    assert inputs.in_force == ()


def test_without_a_post_nothing_is_known() -> None:
    assert World().sources.source(TARGET, NAME[:-1] + "0") is None
    assert World().sources.source("serving/other", NAME) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": ENVIRONMENT | {"executable": "python3"}},
        {"environment": ENVIRONMENT | {"versions": {}}},
        {"recipes": [{"tunable": "tunable:attention:other:00000000", "family": "x", "axes": AXES,
                      "call": {}}]},
    ],
)  # fmt: skip
def test_what_no_experiment_can_use_is_refused_by_its_place(changed: dict[str, Any]) -> None:
    with raises_code(Refused, "tunable-malformed"):
        World(**changed).sources.source(TARGET, NAME)


def test_the_rules_in_force_are_those_of_the_promoted_table() -> None:
    world = World()
    rules = [{"when": {"rows": [1, 64]}, "config": {"TILE_SIZE": 16}}]
    digest = "sha256:" + "d" * 64
    (body,) = world.cluster.all(TARGETS)
    active = {
        "kernel": NAME,
        "digest": digest,
        "epoch": 3,
        "proposal": "p",
        "since": "2026-03-03T00:00:00Z",
    }
    known = body | {"status": {"activeKernels": [active]}}
    world.cluster.operator.stores[TARGETS].put(known)
    with raises_code(Refused, "table-unknown"):
        world.sources.source(TARGET, NAME)
    table = {
        "format": "table",
        "tunable": NAME,
        "family": "attention",
        "source": SOURCE,
        "rules": rules,
        "captures": [],
        "before": None,
    }
    made = json.dumps(table, sort_keys=True, separators=(",", ":"))
    world.tables[digest] = ProvenTable(solution=examples.BASELINE, text=made)
    found = world.sources.source(TARGET, NAME)
    assert found is not None
    assert [each.model_dump() for each in found.inputs.in_force] == [
        {"when": {"rows": (1, 64)}, "config": {"TILE_SIZE": 16}}
    ]
