"""Sidecar context: ports, numbers and memory that the steps of a sidecar share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from retuned.api.agent import (
    AlarmOrder,
    BootOrder,
    LevelsState,
    OrderDone,
    Outcome,
    OverheadOrder,
    PodRef,
    ProofOrder,
    TunablePost,
)
from retuned.node.context import Recogniser
from retuned.node.order_context import OrderMemory
from retuned.node.own_overhead import OverheadKeeper
from retuned.node.windows import WindowSettings
from retuned.ports import (
    Clock,
    Devices,
    KernelTap,
    LiveSteps,
    Operator,
    ServiceCounts,
    Spans,
    StepObserver,
    Swapper,
    Telemetry,
    TraceSource,
)
from retuned.runtime_client.tunables import TunableMemory, TunableTap
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.spool import Spool
from retuned.sidecar.store import PodStore
from retuned.stages.drift import DriftSettings, GpuObservation
from retuned.stages.profile import ProfileSettings
from retuned.stages.swap import MixedEpochs, SwapOrder
from retuned.stages.watch import CanaryDecision, WatchSettings
from retuned.telemetry.spans import NoSpans

SELF = "self"
"""The operator's last answer about this pod: current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Numbers of a sidecar; everything a person may set is in `retuned.settings`."""

    numbers: WindowSettings
    """How windows are made and judged."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """When to keep a swap and when to roll back."""
    mixed_epochs: MixedEpochs = MixedEpochs.REFUSE
    """Whether processes of one server may differ in what they run."""
    catch_up_s: float = 300.0
    """How long a late process may take to follow, before all roll back, seconds."""
    fresh_s: float = 300.0
    """A swap is begun only if the operator has named it within so long, seconds; people may have
    frozen or stopped it since."""
    withdrawn_s: float = 60.0
    """An order that the operator's answers do not name for this time is rolled back, seconds. An
    object that is deleted and made again within it changes nothing."""
    lift_s: float = 60.0
    """Interval between requests for the server's Triton launches, seconds."""
    kernel_bounds: Mapping[str, Mapping[str, tuple[int, int | str]]] = field(default_factory=dict)
    """Numbers that are places, by kernel and argument; see `retuned.settings`."""
    prune_s: float = 60.0
    """Interval between removals of old records, seconds."""
    hello_s: float = 300.0
    """Interval between hellos, seconds."""

    @property
    def window(self) -> timedelta:
        """See `ObservingSettings`."""
        return self.numbers.window

    @property
    def settle(self) -> timedelta:
        """See `ObservingSettings`."""
        return self.numbers.settle

    @property
    def baseline_windows(self) -> int:
        """See `ObservingSettings`."""
        return self.numbers.baseline_windows

    @property
    def profile(self) -> ProfileSettings:
        """See `ObservingSettings`."""
        return self.numbers.profile

    @property
    def drift(self) -> DriftSettings:
        """See `ObservingSettings`."""
        return self.numbers.drift


@dataclass(slots=True, kw_only=True)
class SidecarMemory(OrderMemory):
    """What a sidecar knows for now. A restart finds it again."""

    revision: int = 0
    """Set of orders that was read last; 0 reads it again."""
    hello_at_s: float = float("-inf")
    """When the last hello was sent, monotonic seconds."""
    pruned_at_s: float = float("-inf")
    """When old records were removed last, monotonic seconds."""
    version: int = 1
    """Version of the agent API that the operator and this sidecar both know."""
    processes: int = 0
    """Processes of the server that answered last; 0 before."""
    gpus: tuple[GpuObservation, ...] = ()
    """Last state of the pod's accelerators."""
    lifted_at_s: float = float("-inf")
    """When the server was asked for its launches last, monotonic seconds."""
    seen: str = ""
    """Digest of those launches; empty before."""
    lifted: Mapping[str, str] = field(default_factory=dict)
    """Text of each live kernel's definition, by name; replaced as a whole."""
    told_lifted: dict[str, str] = field(default_factory=dict)
    """Which of them the operator has received, by name: target and digest."""
    tunables: TunableMemory = field(default_factory=TunableMemory)
    """Reports on tunables of the recent past."""
    tunable_posts: Mapping[str, TunablePost] = field(default_factory=dict)
    """What is to be posted of each tunable, by name; replaced as a whole."""
    environment: str = ""
    """Digest of the server's environment; empty if unknown."""
    proofs: tuple[ProofOrder, ...] = ()
    """Swaps that the operator asks to be proven, as its last answer has them."""
    alarms: tuple[AlarmOrder, ...] = ()
    """Swaps that an alarm may try off, as that answer has them."""
    overhead: OverheadOrder | None = None
    """What to do about Retuned's own cost, as that answer has it; None does nothing."""
    boot: BootOrder | None = None
    """What the operator asks a canary replica to measure, as its last answer has it."""
    boot_waits: str = ""
    """Why the boot is not measured yet, a reason code; empty if unknown."""
    boot_instance: str | None = None
    """Process of the server that made the first step; None before."""
    boot_began_s: float = 0.0
    """When that step was seen, seconds since 1970."""
    steps_known: bool = False
    """Whether `steps_unavailable` is an answer of the server."""
    steps_unavailable: str = ""
    """Why the server's steps cannot be timed; empty if they can."""
    steps_at_s: float = float("-inf")
    """When that was observed, monotonic seconds."""
    levels: LevelsState = LevelsState.ABSENT
    """Whether the server's counts could be read."""
    levels_at_s: float = float("-inf")
    """When that was observed, monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Ports and numbers, passed to every step."""

    pod: PodRef
    """Which pod this is."""
    hinted: str
    """Target that the injection named, as ``namespace/name``; empty where it named none."""
    store: PodStore
    clock: Clock
    telemetry: Telemetry
    traces: TraceSource
    swapper: Swapper
    operator: Operator
    catalog: Recogniser
    artifacts: Artifacts
    spool: Spool
    believed: PinnedKeys
    settings: SidecarSettings
    standing: SidecarMemory = field(default_factory=SidecarMemory)
    devices: Devices | None = None
    """The pod's accelerators; None where nothing shows any."""
    kernels: KernelTap | None = None
    """What the server's Triton launches are; None asks for none."""
    tunables: TunableTap | None = None
    """Tunables of the server; None asks for none."""
    live_steps: LiveSteps | None = None
    """Steps of the server, for live proofs; None times none."""
    step_observer: StepObserver | None = None
    """Steps of the server outside of live proofs, for boots; None observes none."""
    service_counts: ServiceCounts | None = None
    """What the server counts of its requests, for service levels; None reads none."""
    own_overhead: OverheadKeeper | None = None
    """Measures what Retuned costs the server; None does not."""
    spans: Spans = field(default_factory=NoSpans)
    """What is being done, for traces and logs."""
    release: str = ""
    """Version of Retuned."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whatever writes orders."""

    @property
    def environment(self) -> str:
        """Digest of what the server runs on; empty where that is not known."""
        return self.standing.environment

    @property
    def target(self) -> str:
        """Target, as the operator named it; as the injection did before; empty before both."""
        said = self.store.get(SELF, "target")
        return str(said.body["target"]) if said is not None else self.hinted

    def report(
        self,
        order: SwapOrder,
        outcome: Outcome,
        *,
        reason: str = "",
        detail: str = "",
        took_ns: int | None = None,
    ) -> None:
        """Put the outcome of an order into the spool; see `OrderContext.report`."""
        done = OrderDone(
            pod=self.pod,
            target=self.target or order.target,
            order=order.id,
            proposal=order.proposal,
            definition=order.definition,
            epoch=order.epoch,
            outcome=outcome,
            reason=reason,
            detail="".join(each if each.isprintable() else " " for each in detail)[:2000],
            at=self.clock.now(),
            took_ns=took_ns,
        )
        self.spool.add(done, key=f"{order.id} {outcome}")
        self.standing.news.set()
        self.telemetry.count("retuned_orders_total", outcome=str(outcome), reason=reason)

    def ramped(self, order: SwapOrder, decision: CanaryDecision) -> None:
        """Do nothing: the operator sees the counts of the slot."""
