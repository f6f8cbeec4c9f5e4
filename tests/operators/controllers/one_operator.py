"""One life of an operator in the virtual cluster: it knows what the API server and sidecars say."""

from __future__ import annotations

from typing import Protocol

from tests.operators.controllers.memory import FakeKernels, FakeLedger, FakeSignals, NoArchive
from tests.operators.controllers.server import Faulty

from retuned.clock import FakeClock
from retuned.errors import RetunedError
from retuned.ports import Spans
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.agent_api import Reports
from retuned_operator.controllers import (
    ClusterView,
    ClusterWriter,
    Decisions,
    Experiments,
    Freezes,
    HypothesisController,
    Policies,
    Proposals,
    Targets,
    objects,
)
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.controllers.ports import Owners, Tunables
from retuned_operator.kube.informer import ObjectCache, key_of
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

OURS = (TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES, PODS, JOBS)


class Surroundings(Protocol):
    """What an operator finds where it starts; `Cluster` is it."""

    api: Faulty
    clock: FakeClock
    telemetry: FakeTelemetry
    spans: Spans | None
    signals: FakeSignals
    ledger: FakeLedger
    tunables: Tunables
    jobs: JobSettings
    generators: tuple[str, ...]
    owners: Owners | None

    def all(self, resource: Resource) -> list[Obj]:
        """Return every object of a kind."""
        ...


class Operator:
    """One operator's life: caches, controllers, what sidecars told it."""

    def __init__(self, cluster: Surroundings) -> None:
        self.cluster = cluster
        self.reports = Reports(NoArchive())
        self.errors: list[str] = []
        self.current = True
        self.stores = {kind: ObjectCache(INDICES.get(kind)) for kind in OURS}
        caches = StoreCaches(self.stores, current=lambda _: self.current)
        telemetry = cluster.telemetry
        self.acting = ClusterWriter(
            cluster.api,
            memory=caches,
            clock=cluster.clock,
            telemetry=telemetry,
            spans=cluster.spans,
        )
        self.world = ClusterView(
            caches=caches,
            reports=self.reports,
            signals=cluster.signals,
            ledger=cluster.ledger,
            kernels=FakeKernels(),
            clock=cluster.clock,
            generators=cluster.generators,
            tunables=cluster.tunables,
            owners=cluster.owners,
        )
        acting, world = self.acting, self.world
        self.controllers = (
            (POLICIES, Policies(world, acting)),
            (FREEZES, Freezes(world, acting)),
            (TARGETS, Targets(world, acting, jobs=cluster.jobs)),
            (TARGETS, HypothesisController(world, acting, telemetry=telemetry)),
            (EXPERIMENTS, Experiments(world, acting, jobs=cluster.jobs, telemetry=telemetry)),
            (TARGETS, Proposals(world, acting, telemetry=telemetry)),
            (DECISIONS, Decisions(world, acting, telemetry=telemetry)),
        )

    def sync(self) -> None:
        """Let every watch bring all there is."""
        for kind, store in self.stores.items():
            bodies = self.cluster.all(kind)
            there = {key_of(body) for body in bodies}
            for body in bodies:
                store.put(body)
            for key in set(store.keys()) - there:
                store.drop(key)

    def look(self, *, sync: bool = True) -> None:
        """Look at every key once; what fails is looked at in the next turn."""
        if sync:
            self.sync()
        for kind, controller in self.controllers:
            keys = set(self.stores[kind].keys())
            if kind is TARGETS:  # its proposals name one that is gone, too
                keys.update(*map(objects.target_word, self.cluster.all(PROPOSALS)))
            for key in sorted(keys):
                try:
                    controller.reconcile(key)
                except RetunedError as error:
                    self.errors.append(str(error))
