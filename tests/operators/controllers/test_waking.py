"""Whom a change concerns: every watch of every controller, and who is left alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.controllers.memory import FakeKernels, FakeLedger, FakeSignals, NoArchive
from tests.operators.kube.running import eventually, in_thread

from retuned.clock import FakeClock
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.agent_api import Hub, Reports
from retuned_operator.controllers import ClusterView, ClusterWriter
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.kube.client import Api
from retuned_operator.kube.informer import ObjectCache, key_of
from retuned_operator.kube.manager import Controller, Manager
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)
from retuned_operator.manifests import JobSettings
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.registry import controllers_of

KINDS = (TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES, PODS, JOBS)
NAMESPACES = ("serving", "serving-2")


def named(body: Obj, name: str, *, namespace: str = "serving", **spec: Any) -> Obj:
    """Return an example under another name, with some of its spec changed."""
    metadata: Obj = {"name": name} | ({"namespace": namespace} if namespace else {})
    return copy.deepcopy(body | {"metadata": metadata, "spec": body["spec"] | spec})


def a_target(name: str, *, namespace: str = "serving") -> Obj:
    selector = {"matchLabels": {"app": name}}
    return named(examples.a_target(), name, namespace=namespace, selector=selector)


def of_target(body: Obj, name: str, target: str, **more: Any) -> Obj:
    return named(body, name, targetRef={"name": target}, **more)


def a_policy(namespace: str) -> Obj:
    spec = {"mode": "ObserveOnly"}
    return examples.an_object("KernelTuningPolicy", "prod", spec, namespace=namespace)


def a_pod(name: str, *, labels: dict[str, str], experiment: str = "") -> Obj:
    notes = {"retuned.dev/experiment": experiment} if experiment else {}
    metadata = {"name": name, "namespace": "serving", "labels": labels, "annotations": notes}
    containers = [{"name": SIDECAR, "image": "sidecar"}]
    spec = {"initContainers": containers, "containers": [{"name": "server", "image": "vllm"}]}
    return {"metadata": metadata, "spec": spec}


OVER = {"phase": "Succeeded"}
HERE: tuple[tuple[Resource, Obj], ...] = (
    *((TARGETS, a_target(name)) for name in ("chat", "code")),
    (TARGETS, a_target("chat", namespace="serving-2")),
    *((POLICIES, a_policy(namespace)) for namespace in NAMESPACES),
    (EXPERIMENTS, of_target(examples.an_experiment(), "exp-chat", "chat")),
    (EXPERIMENTS, of_target(examples.an_experiment(), "exp-over", "chat") | {"status": OVER}),
    (EXPERIMENTS, of_target(examples.an_experiment(), "exp-code", "code")),
    (EXPERIMENTS, named(examples.an_experiment(), "exp-chat", namespace="serving-2")),
    (PROPOSALS, of_target(examples.a_swap(), "swp-chat", "chat", experimentRef="exp-chat")),
    (PROPOSALS, of_target(examples.a_swap(), "swp-code", "code", experimentRef="exp-code")),
    (
        DECISIONS,
        named(examples.a_decision(proposalRef={"name": "swp-chat", "uid": "u"}), "on-chat"),
    ),
    (
        DECISIONS,
        named(examples.a_decision(proposalRef={"name": "swp-code", "uid": "u"}), "on-code"),
    ),
    (
        DECISIONS,
        named(examples.a_decision(proposalRef={"name": "swp-gone", "uid": "u"}), "on-gone"),
    ),
    (FREEZES, named(examples.a_freeze(), "stop", namespace="")),
    (PODS, a_pod("chat-0", labels={"app": "chat"})),
    (PODS, a_pod("stranger", labels={"app": "batch"})),
    (PODS, a_pod("search-x", labels={"job": "search"}, experiment="serving/exp-chat")),
    (JOBS, a_pod("search", labels={}, experiment="serving/exp-chat")),
    (JOBS, a_pod("backup", labels={})),
)
"""Everything that is there."""

ALL_TARGETS = {"serving/chat", "serving/code", "serving-2/chat"}
THESE_TARGETS = {"serving/chat", "serving/code"}
GOING_ON = {"serving/exp-chat", "serving/exp-code"}
"""Experiments of the first namespace that are not over."""
ITSELF = None
"""Each object wakes itself."""
WAKES: dict[tuple[str, Resource], dict[str, set[str]] | None] = {
    ("kerneltuningpolicies", POLICIES): ITSELF,
    ("tuningfreezes", FREEZES): ITSELF,
    ("targets", TARGETS): ITSELF,
    ("targets", PODS): {"serving/chat-0": {"serving/chat"}},
    ("targets", POLICIES): {
        "serving/prod": THESE_TARGETS,
        "serving-2/prod": {"serving-2/chat"},
    },
    ("experiments", EXPERIMENTS): ITSELF,
    ("experiments", JOBS): {"serving/search": {"serving/exp-chat"}},
    ("experiments", PODS): {"serving/search-x": {"serving/exp-chat"}},
    ("experiments", TARGETS): {
        "serving/chat": {"serving/exp-chat", "serving/exp-over"},
        "serving/code": {"serving/exp-code"},
        "serving-2/chat": {"serving-2/exp-chat"},
    },
    ("experiments", PROPOSALS): {
        "serving/swp-chat": {"serving/exp-chat"},
        "serving/swp-code": {"serving/exp-code"},
    },
    ("experiments", FREEZES): {"stop": GOING_ON | {"serving-2/exp-chat"}},
    ("experiments", POLICIES): {
        "serving/prod": GOING_ON,
        "serving-2/prod": {"serving-2/exp-chat"},
    },
    ("proposals", TARGETS): ITSELF,
    ("proposals", PROPOSALS): {
        "serving/swp-chat": {"serving/chat"},
        "serving/swp-code": {"serving/code"},
    },
    ("proposals", DECISIONS): {
        "serving/on-chat": {"serving/chat"},
        "serving/on-code": {"serving/code"},
    },
    ("proposals", FREEZES): {"stop": ALL_TARGETS},
    ("proposals", POLICIES): {
        "serving/prod": THESE_TARGETS,
        "serving-2/prod": {"serving-2/chat"},
    },
    ("proposals", PODS): {"serving/chat-0": {"serving/chat"}},
    ("beliefs", TARGETS): ITSELF,
    ("decisions", DECISIONS): ITSELF,
    ("decisions", PROPOSALS): {
        "serving/swp-chat": {"serving/on-chat"},
        "serving/swp-code": {"serving/on-code"},
    },
    ("orders", TARGETS): ITSELF,
    ("orders", PROPOSALS): {
        "serving/swp-chat": {"serving/chat"},
        "serving/swp-code": {"serving/code"},
    },
}
"""By controller and kind: which object wakes which keys; one that is not named wakes none."""


def of_kind(kind: Resource) -> dict[str, Obj]:
    return {key_of(body): body for resource, body in HERE if resource is kind}


def wired(stores: dict[Resource, ObjectCache], api: Api | None = None) -> dict[str, Controller]:
    """Return the operator's controllers over stores; who looks at nothing needs no API server."""
    clock, telemetry = FakeClock(examples.NOW), FakeTelemetry()
    caches = StoreCaches(stores, current=lambda _: True)
    world = ClusterView(
        caches=caches,
        reports=Reports(NoArchive()),
        signals=FakeSignals(),
        ledger=FakeLedger(),
        kernels=FakeKernels(),
        clock=clock,
    )
    acting = ClusterWriter(api, memory=caches, clock=clock, telemetry=telemetry)  # type: ignore[arg-type]
    found = controllers_of(
        world,
        acting,
        hub=Hub(),
        jobs=JobSettings(image="lab"),
        telemetry=telemetry,
        target_keys=stores[TARGETS].keys,
    )
    return {each.name: each for each in found}


@pytest.fixture(scope="module")
def controllers() -> dict[str, Controller]:
    stores = {kind: ObjectCache(INDICES.get(kind)) for kind in KINDS}
    for resource, body in HERE:
        stores[resource].put(body)
    return wired(stores)


def test_every_watch_of_every_controller_is_told_here(controllers: dict[str, Controller]) -> None:
    watches = {(name, plural) for name, each in controllers.items() for plural in each.watches}
    assert watches == {(name, kind.plural) for name, kind in WAKES}


@pytest.mark.parametrize(("name", "kind"), WAKES, ids=lambda each: getattr(each, "plural", each))
def test_an_object_wakes_whom_it_concerns_and_nobody_else(
    controllers: dict[str, Controller], name: str, kind: Resource
) -> None:
    wakes, here = controllers[name].watches[kind.plural], of_kind(kind)
    assert here, "a watch that no object tries"
    expected = WAKES[name, kind]
    for key, body in here.items():
        wanted = {key} if expected is None else expected.get(key, set())
        assert set(wakes(body)) == wanted, key


def test_an_object_that_makes_no_sense_wakes_none_and_breaks_nothing(
    controllers: dict[str, Controller],
) -> None:
    body: Obj = {"metadata": {"name": "odd", "namespace": "serving"}, "spec": {}, "status": {}}
    for (name, kind), expected in WAKES.items():
        found = set(controllers[name].watches[kind.plural](body))
        if expected is not None and kind not in (FREEZES, POLICIES):
            assert found == set(), (name, kind.plural)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A look at a key, and what could be seen then."""

    controller: str
    key: str
    freezes: tuple[str, ...]
    generation: int
    """Of the policy of the first namespace."""


class Watching:
    """The operator's wiring over the fake API server; who is woken notes that, and no more."""

    def __init__(self, fake: FakeApi) -> None:
        self.looks: set[Looked] = set()
        self.manager = Manager(fake.api())
        self.stores = {kind: self.manager.store(kind, indices=INDICES.get(kind)) for kind in KINDS}
        for each in wired(self.stores).values():
            self.manager.add(replace(each, reconcile=partial(self._look, each.name)))

    def _look(self, controller: str, key: str) -> None:
        policy = self.stores[POLICIES].get("serving/prod")
        assert policy is not None
        look = Looked(
            controller=controller,
            key=key,
            freezes=self.stores[FREEZES].keys(),
            generation=policy["metadata"]["generation"],
        )
        self.looks.add(look)

    def have_looked(self, *, freezes: tuple[str, ...], generation: int) -> bool:
        """Whether all whom it concerns have seen how things stand."""
        concerned = [("experiments", key) for key in GOING_ON]
        concerned += [("proposals", key) for key in THESE_TARGETS]
        return self.looks >= {
            Looked(controller=name, key=key, freezes=freezes, generation=generation)
            for name, key in concerned
        }


def test_a_freeze_that_comes_or_goes_and_a_policy_that_changes_are_seen_by_all_they_concern() -> (
    None
):
    with FakeApi(namespaces=NAMESPACES) as fake:
        for resource, body in HERE:
            if resource in (TARGETS, EXPERIMENTS, POLICIES):
                fake.make(resource, body)
        watching, api = Watching(fake), fake.api()
        with in_thread(watching.manager.run):
            eventually(lambda: watching.have_looked(freezes=(), generation=1))
            api.create(FREEZES, of_kind(FREEZES)["stop"])
            eventually(lambda: watching.have_looked(freezes=("stop",), generation=1))
            change = {"spec": {"mode": "Enforce"}}
            api.patch(POLICIES, "prod", change=change, namespace="serving")
            eventually(lambda: watching.have_looked(freezes=("stop",), generation=2))
            api.delete(FREEZES, "stop")
            eventually(lambda: watching.have_looked(freezes=(), generation=2))
