"""What the steps of a sidecar share: ports, numbers, and the names under which it keeps things."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from retuned.api.agent import BlockedOrder, PodRef
from retuned.node.context import Recogniser
from retuned.node.history import History
from retuned.node.windows import WindowSettings
from retuned.ports import (
    Clock,
    Devices,
    KernelTap,
    Operator,
    Spans,
    Swapper,
    Telemetry,
    TraceSource,
)
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.spool import Spool
from retuned.sidecar.store import TOLD, PodStore
from retuned.stages.drift import DriftSettings, GpuObservation
from retuned.stages.profile import ProfileSettings
from retuned.stages.swap import MixedEpochs
from retuned.stages.watch import WatchReport, WatchSettings
from retuned.telemetry.spans import NoSpans


class RecordKind(StrEnum):
    """Kinds of records beside those of observing."""

    ORDER = "order"
    """One epoch of one slot: new -> done | refused | superseded; done -> undone by a way back."""
    FAILED = "failed"
    """A proposal whose swap did harm here, or was refused; never carried out here again: final."""
    WITHDRAWN = "withdrawn"
    """A way back from what the operator stands behind no more, by the id of its order: final."""
    HELD = "held"
    """Why an order was refused for good, by its id: final."""
    TOLD = TOLD
    """A window or drift report that has gone into the spool: final."""
    SELF = "self"
    """What the operator said of this pod: current."""


OPEN = ("new",)
"""Phases of orders that the server may not have carried out."""
STANDING = ("new", "done")
"""Phases of orders that are in force or may come to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Numbers of a sidecar; everything a person may set is in `retuned.settings`."""

    numbers: WindowSettings
    """How windows are made and judged."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """When to keep and when to go back."""
    mixed_epochs: MixedEpochs = MixedEpochs.REFUSE
    """Whether processes of one server may differ in what they run."""
    catch_up_s: float = 300.0
    """How long a process that came late may take to follow, before all go back, seconds."""
    fresh_s: float = 300.0
    """A swap is begun only if the operator has named it within so long, seconds; people may have
    frozen or stopped it since."""
    withdrawn_s: float = 60.0
    """What is in force and stands in no answer of the operator's goes back after so long, seconds:
    an object that is deleted and made again within it changes nothing."""
    lift_s: float = 60.0
    """How often the server is asked which Triton kernels it launches, seconds."""
    kernel_bounds: Mapping[str, Mapping[str, tuple[int, int | str]]] = field(default_factory=dict)
    """Numbers that are places, by kernel and argument; see `retuned.settings`."""
    prune_s: float = 60.0
    """How often what is over is removed, seconds."""
    hello_s: float = 300.0
    """How often it says who is here, seconds."""

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
class NodeState:
    """What is known for now, and found out anew after a restart."""

    revision: int = 0
    """Set of orders that was read last; 0 reads it again."""
    named: frozenset[str] = frozenset()
    """Orders that the operator named last."""
    named_at_s: float = float("-inf")
    """When that was, monotonic."""
    unnamed: dict[str, float] = field(default_factory=dict)
    """Orders in force that the operator stands behind no more, and since when, monotonic
    seconds."""
    hello_at_s: float = float("-inf")
    """When it last said who is here, monotonic."""
    pruned_at_s: float = float("-inf")
    """When what is over was removed last, monotonic."""
    version: int = 1
    """Of the language that the operator was last heard to speak, as far as both do."""
    processes: int = 0
    """Processes of the server that answered last; 0 before."""
    gpus: tuple[GpuObservation, ...] = ()
    """How the pod's accelerators stood last."""
    lifted_at_s: float = float("-inf")
    """When the server was asked for its launches last, monotonic."""
    seen: str = ""
    """Digest of what it showed; empty before."""
    lifted: Mapping[str, str] = field(default_factory=dict)
    """Text of each live kernel's definition, by name; replaced as a whole."""
    told_lifted: dict[str, str] = field(default_factory=dict)
    """Which of them the operator has heard, by name: target and digest."""
    environment: str = ""
    """Digest of what the server runs on; empty where that is not known."""
    reports: dict[str, tuple[str, WatchReport]] = field(default_factory=dict)
    """By slot: proposal, and what was judged of it last."""
    waits: dict[str, BlockedOrder] = field(default_factory=dict)
    """By slot: why its newest order cannot be carried out yet."""
    behind: dict[str, float] = field(default_factory=dict)
    """Orders that some process has not followed, and since when, monotonic seconds."""
    stuck: dict[str, str] = field(default_factory=dict)
    """By slot: order back to the original that the server refused last."""
    history: History = field(default_factory=History)
    """Samples of orders in force."""
    news: threading.Event = field(default_factory=threading.Event)
    """Set where the operator waits for what is to be told now, and not with the next look."""


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
    standing: NodeState = field(default_factory=NodeState)
    devices: Devices | None = None
    """The pod's accelerators; None where nothing shows any."""
    kernels: KernelTap | None = None
    """What the server's Triton launches are; None asks for none."""
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
        said = self.store.get(RecordKind.SELF, "target")
        return str(said.body["target"]) if said is not None else self.hinted
