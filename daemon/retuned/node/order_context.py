"""Order context: the ports, numbers, records and memory that a node agent's orders need.

The sidecar and `retuned run` implement `OrderContext`. They differ in where orders come from, where
artifacts come from and who receives the outcomes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retuned.api.agent import BlockedOrder, Outcome
from retuned.node.context import ServerPorts
from retuned.node.history import History
from retuned.stages.swap import MixedEpochs, SwapOrder
from retuned.stages.watch import CanaryDecision, WatchReport, WatchSettings

ORDER = "order"
"""One epoch of one slot: new -> sent -> done; new, sent -> refused; new, done -> superseded; sent,
done -> undone. Before ``sent`` no process can have it."""
FAILED = "failed"
"""A proposal whose swap did harm here, or was refused; it is never committed here again: final."""
WITHDRAWN = "withdrawn"
"""The rollback of an order that the control plane no longer names, by the rollback's id: final."""
HELD = "held"
"""Why an order was refused for good, by its id: final."""

OPEN = ("new", "sent")
"""Phases of orders that the server may not have committed."""
STANDING = ("new", "sent", "done")
"""Phases of orders that are in force or may come into force."""


class ArtifactSource(Protocol):
    """Supplies the artifacts of orders."""

    def folder_of(self, order: SwapOrder) -> Path:
        """Return the verified folder of an order's artifact, ready for `Swapper.prepare`.

        Raises
        ------
        CandidateError
            If the artifact must not be loaded, with a stable reason.
        TemporaryError
            If it cannot be supplied now.
        Refused, UnreadableInput, HarnessError, MissingDependency, OSError
            If it cannot be supplied: a swap waits, and a rollback goes to the original.
        """
        ...

    def opens(self, order: SwapOrder) -> bool:
        """Whether the order's artifact opens its slot, as those of live kernels do."""
        ...


class OrderSettings(Protocol):
    """Numbers of a node agent's orders."""

    @property
    def watch(self) -> WatchSettings:
        """When a swap is kept, and when it is rolled back."""
        ...

    @property
    def mixed_epochs(self) -> MixedEpochs:
        """Whether processes of one server may run different variants."""
        ...

    @property
    def catch_up_s(self) -> float:
        """How long a process that started later may lack an order before all roll back, seconds."""
        ...

    @property
    def fresh_s(self) -> float:
        """A swap starts only if the control plane named it at most so long ago, seconds."""
        ...

    @property
    def withdrawn_s(self) -> float:
        """An order that the control plane does not name for so long is rolled back, seconds."""
        ...


@dataclass(slots=True, kw_only=True)
class OrderMemory:
    """What a node agent knows of its orders for now. A restart finds it again."""

    named: frozenset[str] = frozenset()
    """Orders that the control plane named last."""
    named_at_s: float = float("-inf")
    """When that was, monotonic seconds."""
    unnamed: dict[str, float] = field(default_factory=dict)
    """Orders in force that the control plane no longer names, and since when, monotonic seconds."""
    reports: dict[str, tuple[str, WatchReport]] = field(default_factory=dict)
    """By slot: the proposal that is watched, and its last report."""
    waits: dict[str, BlockedOrder] = field(default_factory=dict)
    """By slot: why its newest order cannot be committed yet."""
    behind: dict[str, float] = field(default_factory=dict)
    """Orders that some process lacks, and since when, monotonic seconds."""
    stuck: dict[str, str] = field(default_factory=dict)
    """By slot: the rollback to the original that the server refused last."""
    history: History = field(default_factory=History)
    """Samples of orders in force."""
    news: threading.Event = field(default_factory=threading.Event)
    """Set when a report to the control plane is urgent."""


class OrderContext(ServerPorts, Protocol):
    """Ports and numbers of the steps that receive, commit, watch and roll back orders."""

    @property
    def artifacts(self) -> ArtifactSource:
        """Where artifacts come from."""
        ...

    @property
    def settings(self) -> OrderSettings:
        """Numbers."""
        ...

    @property
    def standing(self) -> OrderMemory:
        """Memory."""
        ...

    @property
    def lock(self) -> threading.RLock:
        """Held while orders are written."""
        ...

    @property
    def target(self) -> str:
        """Target of this server; an order for another one is refused."""
        ...

    def report(
        self,
        order: SwapOrder,
        outcome: Outcome,
        *,
        reason: str = "",
        detail: str = "",
        took_ns: int | None = None,
    ) -> None:
        """Report the outcome of an order to the control plane, once or more often.

        Raises
        ------
        TemporaryError
            If it cannot be written.
        """
        ...

    def ramped(self, order: SwapOrder, decision: CanaryDecision) -> None:
        """Record a step of a canary over the launches of this server."""
        ...
