"""From settings to a sidecar: the real adapter of each port in a pod."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from retuned.api.agent import PodRef
from retuned.clock import SystemClock
from retuned.errors import UsageError
from retuned.node import metrics
from retuned.node.context import BATCH
from retuned.node.gpu import find_devices
from retuned.node.own_overhead import OverheadKeeper
from retuned.node.service_levels import counts_at
from retuned.node.watcher import kept_after
from retuned.node.windows import WindowSettings, numbers_of
from retuned.ports import Devices
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.runtime_client.kernels import RuntimeKernels
from retuned.runtime_client.live_steps import ServerSteps, StepLook
from retuned.runtime_client.own_overhead import ServerOverhead
from retuned.runtime_client.tunables import RuntimeTunables
from retuned.settings import Settings
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.context import Context, SidecarSettings
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.main import Sidecar
from retuned.sidecar.operator_api import OperatorApi
from retuned.sidecar.sockets import PodSocket
from retuned.sidecar.spool import Spool
from retuned.sidecar.store import PodStore
from retuned.sidecar.tables import OrderedTables
from retuned.sidecar.trace_folders import EmptiedFolders
from retuned.stages.swap import MixedEpochs
from retuned.telemetry import Exporter
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.prometheus import PrometheusTelemetry
from retuned.traces import ReadLimits
from retuned.traces.folder import TraceFolders, WatchSettings
from retuned.traces.kineto_correlation import OWN

log = logging.getLogger(__name__)

_MAX_LAUNCHES = 20_000
"""Launches that are read at a time: the memory of a sidecar is a pod's."""
_MAX_SIGNATURES = 1_024
"""Signatures of a window that are kept one by one, for the same reason: all above a thousandth of
the time are among them."""
_MAX_KINDS = 1_024
"""Kinds of Triton launches that are read, for the same reason."""


class Catalog:
    """Kernels of the catalog, in whatever language: a slot that is not there counts nothing.

    It is loaded with the first operator of ours: most servers have none, and it is 9 MiB.
    """

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None for an unknown kernel."""
        if not kernel.startswith(OWN):
            return None
        from retuned import catalog

        binding = catalog.recognise(kernel, dims, dtypes)
        return None if binding is None else (binding.definition, binding.axes)


def build(settings: Settings) -> tuple[Sidecar, PrometheusTelemetry]:
    """Connect everything; nothing runs yet.

    Raises
    ------
    UsageError
        If the pod or the operator is not named.
    TemporaryError, UnreadableInput
        If the state cannot be kept or read.
    """
    clock = SystemClock()
    operator = _operator(settings)
    pod = _pod(settings)
    whose = {"k8s.pod.name": pod.name, "k8s.namespace.name": pod.namespace}
    spans = open_spans("retuned-sidecar", url=settings.traces_url, **whose)
    store = PodStore(settings.state_dir, clock=clock, carried=spans.carried)
    believed = PinnedKeys(store, configured=os.environ.get("RETUNED_TRUSTED_KEY", ""))
    telemetry = PrometheusTelemetry(Exporter.SIDECAR)
    metrics.begin(telemetry, clock)
    source = TraceFolders(
        settings.watch_dirs,
        clock=clock,
        known=store.ids(BATCH),
        settings=WatchSettings(max_launches=_MAX_LAUNCHES),
        limits=ReadLimits(input_bytes=settings.max_trace_bytes),
    )
    server = PodSocket(settings.sockets, key=believed.shown_to_servers)
    live_steps = ServerSteps(settings.sockets)
    artifacts = Artifacts(settings.state_dir / "artifacts", operator=operator, believed=believed)
    context = Context(
        pod=pod,
        hinted=f"{pod.namespace}/{settings.target}" if _is_named(settings) else "",
        store=store,
        clock=clock,
        telemetry=telemetry,
        traces=EmptiedFolders(
            settings.watch_dirs, source=source, clock=clock, max_bytes=settings.max_folder_bytes
        ),
        swapper=ChangeSwapper(
            server,
            settings.sockets,
            changes=OrderedTables(store, artifacts),
            term=server.term,
            key=believed.shown_to_servers,
            server=server,
        ),
        devices=_devices(),
        kernels=RuntimeKernels(settings.sockets, server=server, most=_MAX_KINDS),
        tunables=RuntimeTunables(settings.sockets),
        live_steps=live_steps,
        step_observer=StepLook(settings.sockets),
        own_overhead=OverheadKeeper(
            ServerOverhead(settings.sockets),
            live=live_steps,
            store=store,
            clock=clock,
            telemetry=telemetry,
            reports=True,
        ),
        service_counts=counts_at(settings.server_metrics_url),
        operator=operator,
        catalog=Catalog(),
        artifacts=artifacts,
        spool=Spool(settings.state_dir / "spool", max_bytes=settings.spool_bytes),
        believed=believed,
        settings=SidecarSettings(
            numbers=_numbers(settings),
            mixed_epochs=MixedEpochs(settings.mixed_epochs),
            catch_up_s=settings.catch_up_s,
            kernel_bounds=settings.kernel_bounds,
            watch=kept_after(settings.detector_preset),
        ),
        spans=spans,
        release=_release(),
    )
    return Sidecar(context), telemetry


def _devices() -> Devices | None:
    found = find_devices()
    if found is None:
        log.info("no library for the pod's GPUs: clocks, power and neighbours are not reported")
    return found


def _numbers(settings: Settings) -> WindowSettings:
    found = numbers_of(settings, stands_still_s=WatchSettings().settle_s)
    profile = found.profile.model_copy(update={"max_signatures": _MAX_SIGNATURES})
    return replace(found, profile=profile)


def _operator(settings: Settings) -> OperatorApi:
    if not settings.agent_url or settings.token_file is None:
        raise UsageError(
            "a sidecar needs agent_url and token_file; the injection sets both, see `kubectl "
            "retuned inject`"
        )
    return OperatorApi(settings.agent_url, token_file=settings.token_file, ca_file=settings.ca_file)


def _pod(settings: Settings) -> PodRef:
    if not (settings.pod_namespace and settings.pod_name and settings.pod_uid):
        raise UsageError("a sidecar needs pod_namespace, pod_name and pod_uid")
    return PodRef(namespace=settings.pod_namespace, name=settings.pod_name, uid=settings.pod_uid)


def _is_named(settings: Settings) -> bool:
    """Whether the settings name the target: the default is that of one machine."""
    return "target" in settings.model_fields_set


def _release() -> str:
    try:
        return importlib.metadata.version("retuned")
    except importlib.metadata.PackageNotFoundError:
        return ""
