"""Everything of one operator, put together and taken down in order."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from retuned.adapters.clock import SystemClock
from retuned.adapters.signing import Ed25519Notary
from retuned.adapters.sqlite_store import SqliteStore
from retuned.adapters.telemetry import PrometheusTelemetry
from retuned.adapters.tracing import open_spans
from retuned.errors import RetunedError, UsageError
from retuned.metrics import Exporter
from retuned.ports import Clock
from retuned_operator.agent import AgentServer, Hub, Reports, TokenReviews, agent_app
from retuned_operator.agent.serving import Certificates
from retuned_operator.controllers import Acting, World
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.controllers.experiments import EVOLVE
from retuned_operator.controllers.ports import BY_LABEL, BY_SIDECAR
from retuned_operator.crds import KernelExperiment
from retuned_operator.manifests.names import EXPERIMENT_UID, MANAGER
from retuned_operator.manifests.roles import LEASE
from retuned_operator.program.accounting import ClusterAccounts
from retuned_operator.program.asking import Asking
from retuned_operator.program.catalog import CatalogKernels
from retuned_operator.program.channel_settings import channel_settings
from retuned_operator.program.channelling import ClusterChannels
from retuned_operator.program.collecting import Collector
from retuned_operator.program.controlling import controllers_of
from retuned_operator.program.definitions import learn
from retuned_operator.program.fleet import CachedFleet
from retuned_operator.program.health import HealthServer
from retuned_operator.program.ledger import StoreLedger
from retuned_operator.program.live_kernels import LiveKernels
from retuned_operator.program.prometheus import Prometheus
from retuned_operator.program.reporting import write_reports
from retuned_operator.program.results import ResultFolder
from retuned_operator.program.reviewing import review_app, review_settings
from retuned_operator.program.securing import Securing
from retuned_operator.program.settings import Settings
from retuned_operator.program.shelf import StoreShelf
from retuned_operator.program.showing import Shown
from retuned_operator.program.signals import PrometheusSignals
from retuned_operator.runtime.client import Api, connect
from retuned_operator.runtime.lease import EXIT_LOST, LEASE_TIMEOUTS, Leader
from retuned_operator.runtime.manager import Manager
from retuned_operator.runtime.queue import WorkQueue
from retuned_operator.runtime.resources import (
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
from retuned_operator.runtime.store import Store

log = logging.getLogger(__name__)

WATCHED = (TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES)
"""Our own kinds; pods and Jobs are watched besides."""
_LOOK_S = 0.5
_SWEEP = timedelta(minutes=10)
_SHOW_S = 10.0
_CHANNELS_RETRY_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the API server is reached: one connection for all, one for the lease alone."""

    api: Api
    """For everything."""
    election: Api
    """For the lease, so that nothing else delays its renewal."""


class Operator:
    """One operator.

    Parameters
    ----------
    settings
        What an administrator chose.
    reach
        The API server; found by the settings by default.
    clock
        Time.
    on_lost
        Called when the lease is lost; by default the process ends at once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        reach: Reach | None = None,
        clock: Clock | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.registry = CollectorRegistry()
        self._telemetry = PrometheusTelemetry(Exporter.OPERATOR, registry=self.registry)
        self._reach = reach or _reached(settings)
        identity = f"{settings.pod_name}_{os.urandom(6).hex()}"
        leader = Leader(
            self._reach.election,
            LEASE,
            namespace=settings.pod_namespace,
            identity=identity,
            on_lost=on_lost or _gone,
        )
        self.manager = Manager(self._reach.api, leader=leader, registry=self.registry)
        self.hub = Hub()
        self._queues: dict[str, WorkQueue] = {}
        whose = {"k8s.pod.name": settings.pod_name, "k8s.namespace.name": settings.pod_namespace}
        self._spans = open_spans("retuned-operator", url=settings.traces_url, **whose)
        self._store = SqliteStore(
            settings.state_dir / "state", clock=self._clock, carried=self._spans.carried
        )
        notary = Ed25519Notary(settings.state_dir / "keys")
        notary.current()  # a key that cannot be used is found before anything else is begun
        if settings.webhook_port is not None:
            settings.sidecar_settings()  # and so is a sidecar that nobody could put into a pod
        self._stores = self._kept(settings)
        self.caches = StoreCaches(self._stores, current=self.manager.is_current)
        self._results = ResultFolder(settings.state_dir / "results")
        collector = Collector(
            self._results, pods=self._pods_of, logs=self._reach.api, clock=self._clock
        )
        artifacts = settings.state_dir / "artifacts"
        learnt = learn(settings.definitions_dir)  # before pods tell of kernels that take a name
        live = LiveKernels(self._store)
        self._kernels = CatalogKernels(live)
        self._accounts = ClusterAccounts(
            self._store, self.caches, kernels=self._kernels, results=self._results
        )
        self._ledger = StoreLedger(
            self._store,
            notary,
            artifacts=artifacts,
            results=self._results,
            collector=collector,
            live=live,
            heard=self._accounts.heard,
            spans=self._spans,
            asking=Asking(self._store, settings.job_settings(), clock=self._clock),
        )
        self.reports = Reports(self._ledger, changed=self._heard)
        self._fleet = CachedFleet(
            self.caches,
            artifact=self._ledger.artifact,
            key=notary.public_hex,
            gpu_resources=settings.job_settings().accelerators,
        )
        self._shown = Shown(self.caches, self._telemetry, clock=self._clock, learnt=learnt)
        self._stack = ExitStack()
        self._control(settings)
        self._securing = Securing(settings, self.manager.writer, namespaces=self._server_namespaces)
        self._agent: AgentServer | None = None
        self._pages = self._review(settings, notary)
        self._page: AgentServer | None = None
        self._channels = self._channelled(settings)
        self._ear: AgentServer | None = None
        self._channels_at_s = float("-inf")
        self._ended = threading.Event()
        self.health = self._health(settings)

    def _kept(self, settings: Settings) -> dict[Resource, Store]:
        jobs = settings.job_settings()
        watched = settings.namespaces
        with_jobs = (jobs.namespace,) if jobs.namespace else watched
        with_pods = tuple(dict.fromkeys((*watched, *with_jobs))) if watched else ()
        stores = {
            kind: self.manager.store(kind, namespaces=watched, indices=INDICES.get(kind))
            for kind in WATCHED
        }
        stores[PODS] = self.manager.store(PODS, namespaces=with_pods, indices=INDICES[PODS])
        stores[JOBS] = self.manager.store(
            JOBS,
            namespaces=with_jobs,
            labels=f"app.kubernetes.io/managed-by={MANAGER}",
            indices=INDICES[JOBS],
        )
        return stores

    def _control(self, settings: Settings) -> None:
        prometheus = None
        if settings.prometheus_url:
            client = self._stack.enter_context(httpx.Client(base_url=settings.prometheus_url))
            prometheus = Prometheus(client, clock=self._clock)
        world = World(
            caches=self.caches,
            reports=self.reports,
            signals=PrometheusSignals(
                prometheus, slo_alerts=settings.slo_alerts, clock=self._clock
            ),
            ledger=self._ledger,
            kernels=self._kernels,
            clock=self._clock,
            environment=settings.environment,
            generators=("search", EVOLVE) if settings.job_settings().asks_model else ("search",),
        )
        acting = Acting(
            self.manager.writer,
            memory=self.caches,
            clock=self._clock,
            telemetry=self._telemetry,
            spans=self._spans,
        )
        for controller in controllers_of(
            world,
            acting,
            hub=self.hub,
            jobs=settings.job_settings(),
            telemetry=self._telemetry,
            target_keys=self._stores[TARGETS].keys,
        ):
            self._queues[controller.name] = self.manager.add(controller)

    def _review(self, settings: Settings, notary: Ed25519Notary) -> ASGIApp | None:
        """Return the review page; None where nobody wants one."""
        if settings.review_port is None:
            return None
        shelf = StoreShelf(
            self._store, notary, kernels=self._kernels, accounts=self._accounts.accounts
        )
        return review_app(
            review_settings(settings.review),
            self._reach.api,
            caches=self.caches,
            shelf=shelf,
            clock=self._clock,
            gpu_resources=settings.job_settings().accelerators,
        )

    def _channelled(self, settings: Settings) -> ClusterChannels:
        chosen = channel_settings(settings.channels)
        if chosen.channels_listen and settings.channels_port is None:
            raise UsageError("channels: answers are heard on channels_port, and none is set")
        return ClusterChannels(
            chosen,
            folder=settings.state_dir / "channels",
            api=self._reach.api,
            own=self.manager.writer,
            caches=self.caches,
            clock=self._clock,
            telemetry=self._telemetry,
            leads=self.manager.is_acting,
        )

    def _health(self, settings: Settings) -> HealthServer:
        return HealthServer(
            self.registry,
            live={"running": lambda: not self._ended.is_set(), "agent": self._agent_lives},
            ready={"synced": self.manager.is_synced, "webhook": self._securing.is_serving},
            address=settings.address,
            port=settings.metrics_port,
        )

    # --- runs -------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Do everything until `stop` is set, then end in order.

        Raises
        ------
        RetunedError
            If what must be served cannot be.
        """
        self.health.start()
        managing = threading.Thread(target=self._manage, args=(stop,), name="manager")
        managing.start()
        try:
            self._serve(stop)
        finally:
            stop.set()
            managing.join()
            self._end()

    def _manage(self, stop: threading.Event) -> None:
        try:
            self.manager.run(stop)
        finally:
            self._ended.set()
            stop.set()

    def _serve(self, stop: threading.Event) -> None:
        """Serve the webhook from the start, and the agent API while this one leads.

        What sidecars say is kept in memory: only who leads may hear it.
        """
        sweep_at = show_at = self._clock.monotonic_s()
        while not stop.wait(_LOOK_S):
            try:
                self._securing.step(now=self._clock.now(), leading=self.manager.is_acting())
            except RetunedError as error:
                log.warning("certificates: %s", error)
            pair = self._securing.files
            if self._agent is None and self.manager.is_acting() and pair is not None:
                self._agent = self._agent_on(*pair)
                self._page = self._page_on(*pair)
            if self._agent is not None and pair is not None:
                self._channels_on(*pair)
            if self._clock.monotonic_s() >= sweep_at and self.manager.is_acting():
                try:
                    self._sweep()
                except RetunedError as error:  # such as a disk that does not answer
                    log.warning("what is over stays for now: %s", error)
                sweep_at = self._clock.monotonic_s() + _SWEEP.total_seconds()
            if self._clock.monotonic_s() >= show_at and self.manager.is_acting():
                self._shown.show()
                show_at = self._clock.monotonic_s() + _SHOW_S

    def _agent_on(self, certificate: Path, key: Path) -> AgentServer:
        app = agent_app(
            self._fleet,
            self.reports,
            tokens=TokenReviews(self._reach.api),
            hub=self.hub,
            clock=self._clock,
            traces=self._fleet.traces,
            heard=self.reports.has_heard,
        )
        server = AgentServer(
            app,
            Certificates(certificate, key),
            hub=self.hub,
            address=self._settings.address,
            port=self._settings.agent_port,
        )
        server.start()
        log.info("the agent API listens on port %d", server.port)
        return server

    def _page_on(self, certificate: Path, key: Path) -> AgentServer | None:
        """Serve the review page; where the store is, which who leads has."""
        if self._pages is None or self._settings.review_port is None:
            return None
        server = AgentServer(
            self._pages,
            Certificates(certificate, key),
            hub=Hub(),
            address=self._settings.address,
            port=self._settings.review_port,
        )
        server.start()
        log.info("the review page listens on port %d", server.port)
        return server

    def _channels_on(self, certificate: Path, key: Path) -> None:
        """Let channels begin once this one leads, and hear what they say.

        Channels that cannot begin keep nothing else from its work, and are tried again.
        """
        now_s = self._clock.monotonic_s()
        if not self._channels.is_any or self._channels.has_begun or now_s < self._channels_at_s:
            return
        try:
            app = self._channels.start()
            if app is not None and self._settings.channels_port is not None:
                self._ear = AgentServer(
                    app,
                    Certificates(certificate, key),
                    hub=Hub(),
                    address=self._settings.address,
                    port=self._settings.channels_port,
                )
                self._ear.start()
                log.info("channels are heard on port %d", self._ear.port)
        except RetunedError as error:
            log.error("nobody is told of proposals, and nobody heard: %s", error)
            self._channels.stop()
            self._ear, self._channels_at_s = None, now_s + _CHANNELS_RETRY_S

    def _sweep(self) -> None:
        """Tell what was spent and saved; forget what pods and experiments left that are gone."""
        try:
            self._accounts.keep_up()  # before results go
            keys = self._stores[TARGETS].keys()
            write_reports(
                self.manager.writer,
                self._accounts.accounts(),
                namespaces={key.partition("/")[0] for key in keys},
            )
        except RetunedError as error:
            log.warning("accounts: %s", error)
        uids = {str(body["metadata"].get("uid", "")) for body in self._stores[PODS].list()}
        self.reports.forget_all_but(uids)
        experiments = self.caches.list(EXPERIMENTS)
        if experiments is not None:
            self._results.keep_only({str(body["metadata"].get("uid", "")) for body in experiments})

    def _end(self) -> None:
        for server in (self._ear, self._page, self._agent):
            if server is not None:
                server.stop()
        self._channels.stop()
        self._securing.stop()
        self.health.stop()
        self._stack.close()
        self._store.close()
        self._spans.close()

    # --- what others ask --------------------------------------------------------------------------

    @property
    def agent_port(self) -> int | None:
        """Port of the agent API; None while it does not listen."""
        return self._agent.port if self._agent is not None else None

    @property
    def review_port(self) -> int | None:
        """Port of the review page; None while it does not listen."""
        return self._page.port if self._page is not None else None

    @property
    def channels_port(self) -> int | None:
        """Port on which channels are heard; None while it does not listen."""
        return self._ear.port if self._ear is not None else None

    def _heard(self, target: str) -> None:
        for name in ("targets", "proposals", "beliefs"):
            self._queues[name].add_after(target, _LOOK_S)

    def _pods_of(self, experiment: KernelExperiment) -> Sequence[Obj] | None:
        """Return the pods of an experiment."""
        namespace = self._settings.job_settings().namespace or experiment.metadata.namespace
        word = f"{namespace}/{EXPERIMENT_UID}={experiment.metadata.uid}"
        return self.caches.by(PODS, BY_LABEL, word)

    def _agent_lives(self) -> bool:
        return self._agent is None or self._agent.is_serving

    def _server_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces with targets, or with pods whose sidecars ask for one."""
        keys = self._stores[TARGETS].keys()
        injected = self._stores[PODS].words(BY_SIDECAR)
        return tuple(sorted({key.partition("/")[0] for key in keys} | set(injected)))


def _gone() -> None:
    """End at once: whatever threads are about to write is not theirs to write any more."""
    os._exit(EXIT_LOST)


def _reached(settings: Settings) -> Reach:
    return Reach(
        api=connect(settings.kubeconfig),
        election=connect(settings.kubeconfig, timeouts=LEASE_TIMEOUTS),
    )
