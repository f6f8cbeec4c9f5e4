"""Everything of one operator, put together and taken down in order."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from retuned.clock import SystemClock
from retuned.errors import RetunedError, UsageError
from retuned.ports import Clock
from retuned.telemetry import Exporter
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.prometheus import PrometheusTelemetry
from retuned_operator.agent_api import Hub, Reports, TokenReviews, agent_app
from retuned_operator.certificates import CertificateManager
from retuned_operator.cleanup import sweep
from retuned_operator.controllers import ClusterView, ClusterWriter
from retuned_operator.controllers.caches import StoreCaches
from retuned_operator.controllers.job_requests import EVOLVE
from retuned_operator.controllers.ports import BY_LABEL, BY_SIDECAR
from retuned_operator.health import HealthServer
from retuned_operator.kube.client import Api, connect
from retuned_operator.kube.lease import EXIT_LOST, LEASE_TIMEOUTS, Leader
from retuned_operator.kube.manager import Manager
from retuned_operator.kube.queue import WorkQueue
from retuned_operator.kube.resources import PODS, TARGETS, Obj
from retuned_operator.manifests.names import EXPERIMENT_UID
from retuned_operator.manifests.roles import LEASE
from retuned_operator.metrics import ClusterMetrics
from retuned_operator.notifications import ClusterChannels
from retuned_operator.notify_settings import channel_settings
from retuned_operator.pods import CachedFleet
from retuned_operator.prometheus import Prometheus, PrometheusSignals
from retuned_operator.registry import controllers_of, stores_of
from retuned_operator.review.settings import review_app, review_settings
from retuned_operator.schema import KernelExperiment
from retuned_operator.servers import LeaderServers
from retuned_operator.settings import Settings
from retuned_operator.state import open_state
from retuned_operator.store.review import StoredReviews

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_SWEEP = timedelta(minutes=10)
_SHOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConnections:
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
        Called when the lease is lost; by default the process ends immediately.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        reach: ApiConnections | None = None,
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
        if settings.webhook_port is not None:
            settings.sidecar_settings()  # invalid ones are reported at the start
        self._stores = stores_of(self.manager, settings)
        self.caches = StoreCaches(self._stores, current=self.manager.is_current)
        self._state = open_state(
            settings,
            self.caches,
            pods=self._pods_of,
            logs=self._reach.api,
            clock=self._clock,
            spans=self._spans,
        )
        self.reports = Reports(self._state.ledger, changed=self._heard)
        self._shown = ClusterMetrics(
            self.caches, self._telemetry, clock=self._clock, learnt=self._state.learnt
        )
        self._stack = ExitStack()
        self._control(settings)
        self._securing = CertificateManager(
            settings, self.manager.writer, namespaces=self._server_namespaces
        )
        self._listening = LeaderServers(
            settings,
            agent=self._agent(settings),
            hub=self.hub,
            pages=self._review(settings),
            channels=self._channelled(settings),
            clock=self._clock,
        )
        self._ended = threading.Event()
        self.health = self._health(settings)

    def _control(self, settings: Settings) -> None:
        prometheus = None
        if settings.prometheus_url:
            client = self._stack.enter_context(httpx.Client(base_url=settings.prometheus_url))
            prometheus = Prometheus(client, clock=self._clock)
        world = ClusterView(
            caches=self.caches,
            reports=self.reports,
            signals=PrometheusSignals(
                prometheus, slo_alerts=settings.slo_alerts, clock=self._clock
            ),
            ledger=self._state.ledger,
            kernels=self._state.kernels,
            tunables=self._state.tunables,
            owners=self._reach.api if settings.canary_replicas else None,
            clock=self._clock,
            environment=settings.environment,
            generators=("search", EVOLVE) if settings.job_settings().asks_model else ("search",),
        )
        acting = ClusterWriter(
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

    def _agent(self, settings: Settings) -> ASGIApp:
        state = self._state
        fleet = CachedFleet(
            self.caches,
            artifact=state.ledger.artifact,
            key=state.notary.public_hex,
            gpu_resources=settings.job_settings().accelerators,
        )
        return agent_app(
            fleet,
            self.reports,
            tokens=TokenReviews(self._reach.api),
            hub=self.hub,
            clock=self._clock,
            traces=fleet.traces,
            heard=self.reports.has_heard,
        )

    def _review(self, settings: Settings) -> ASGIApp | None:
        """Return the review page; None if no port is set."""
        if settings.review_port is None:
            return None
        state = self._state
        shelf = StoredReviews(
            state.store, state.notary, kernels=state.kernels, accounts=state.accounts.accounts
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
            live={
                "running": lambda: not self._ended.is_set(),
                "agent": self._listening.agent_lives,
            },
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
        """Serve the webhook from the start, and the rest while this one leads."""
        sweep_at = show_at = self._clock.monotonic_s()
        while not stop.wait(_LOOK_S):
            try:
                self._securing.step(now=self._clock.now(), leading=self.manager.is_acting())
            except RetunedError as error:
                log.warning("certificates: %s", error)
            pair = self._securing.files
            if pair is not None:
                self._listening.look(*pair, leads=self.manager.is_acting())
            if self._clock.monotonic_s() >= sweep_at and self.manager.is_acting():
                try:
                    self._sweep()
                except RetunedError as error:  # such as a disk that does not answer
                    log.warning("old records cannot be removed now: %s", error)
                sweep_at = self._clock.monotonic_s() + _SWEEP.total_seconds()
            if self._clock.monotonic_s() >= show_at and self.manager.is_acting():
                self._shown.show()
                show_at = self._clock.monotonic_s() + _SHOW_S

    def _sweep(self) -> None:
        sweep(
            self.manager.writer,
            self._stores,
            caches=self.caches,
            state=self._state,
            reports=self.reports,
            now=self._clock.now(),
        )

    def _end(self) -> None:
        self._listening.end()
        self._securing.stop()
        self.health.stop()
        self._stack.close()
        self._state.store.close()
        self._spans.close()

    # --- what others ask --------------------------------------------------------------------------

    @property
    def agent_port(self) -> int | None:
        """Port of the agent API; None while it does not listen."""
        return self._listening.agent_port

    @property
    def review_port(self) -> int | None:
        """Port of the review page; None while it does not listen."""
        return self._listening.review_port

    @property
    def channels_port(self) -> int | None:
        """Port on which channels are heard; None while it does not listen."""
        return self._listening.channels_port

    def _heard(self, target: str) -> None:
        for name in ("targets", "proposals", "beliefs"):
            self._queues[name].add_after(target, _LOOK_S)

    def _pods_of(self, experiment: KernelExperiment) -> Sequence[Obj] | None:
        """Return the pods of an experiment."""
        namespace = self._settings.job_settings().namespace or experiment.metadata.namespace
        word = f"{namespace}/{EXPERIMENT_UID}={experiment.metadata.uid}"
        return self.caches.by(PODS, BY_LABEL, word)

    def _server_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces with targets, or with pods whose sidecars ask for one."""
        keys = self._stores[TARGETS].keys()
        injected = self._stores[PODS].words(BY_SIDECAR)
        return tuple(sorted({key.partition("/")[0] for key in keys} | set(injected)))


def _gone() -> None:
    """End immediately: the threads have no right to write any more."""
    os._exit(EXIT_LOST)


def _reached(settings: Settings) -> ApiConnections:
    return ApiConnections(
        api=connect(settings.kubeconfig),
        election=connect(settings.kubeconfig, timeouts=LEASE_TIMEOUTS),
    )
