"""The server: what its slots serve, and what its launches show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from retuned.contract import Definition, Digest
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample
from retuned.stages.watch.proof import ArmLaunches, StepRecord
from retuned.stages.watch.proof.service_level import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot of one server, as the runtime reports it."""

    definition: str
    """Name of the definition, also the slot's name."""
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int
    """Last order carried out; 0 before the first."""
    newest_epoch: int = 0
    """Last order that any process carried out; 0 says no more than `epoch`."""
    launches: Mapping[tuple[int, ...], int]
    """Launches since start, per lengths of the variable axes in declaration order."""
    other_launches: int = 0
    """Launches of shapes beyond those counted one by one, and of inputs without a shape."""
    tripped: str = ""
    """Why the runtime took the order back by itself; empty if it did not."""
    bypassed: bool = False
    """Whether the original serves for a while although an order is in force."""
    awaits_graphs: bool = False
    """Whether some captured graphs keep the original until they are captured again."""
    counted: bool = True
    """Whether launches pass it; of a kernel that a file configures none does."""
    uncounted_s: float = 0.0
    """Time since start in which its launches were not counted, seconds."""


class ServiceCounts(Protocol):
    """What the server counts of its requests."""

    def read(self) -> Served:
        """Return the counts until now.

        Raises
        ------
        TemporaryError
            If they cannot be read.
        """
        ...


class LiveSteps(Protocol):
    """Steps of the server, recorded in its process while a swap is proven on live traffic."""

    def unavailable(self) -> str:
        """Return why steps cannot be recorded, a reason code; empty if they can.

        Raises
        ------
        TemporaryError
            If the server does not answer, or has not begun its first step.
        """
        ...

    def engine(self) -> str:
        """Return name and version of the engine, as `unavailable` saw it; empty if unknown."""
        ...

    def begin(self) -> None:
        """Record from now on.

        Raises
        ------
        CandidateError, TemporaryError
            If the server refuses, or does not answer.
        """
        ...

    def read(self) -> Sequence[tuple[str, StepRecord]]:
        """Return the steps since the last call, each with the label of its block.

        Raises
        ------
        CandidateError
            ``server-restarted``, or the server's reason.
        TemporaryError
            If the server does not answer.
        """
        ...

    def launches(self) -> Sequence[ArmLaunches]:
        """Return the launches of the proven slot since `begin`; empty where none are timed.

        Raises
        ------
        CandidateError, TemporaryError
            As `read`.
        """
        ...

    def end(self) -> None:
        """Record no longer; as `begin`."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def now_s(self) -> float:
        """Return a monotonic time, seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSteps:
    """Steps of a server in a stretch of time, with whatever it runs."""

    engine: str
    """Name and version of the engine, such as ``vllm 0.33.0``; empty if unknown."""
    steps: Sequence[StepRecord]
    instance: str = ""
    """Changes with a restart of the server's process; empty if unknown."""


class StepObserver(Protocol):
    """Observes steps of the server outside of live proofs, switching nothing."""

    def observe(self, seconds: float) -> ObservedSteps:
        """Record the steps of so many seconds.

        Raises
        ------
        CandidateError
            The reason why steps cannot be recorded.
        TemporaryError
            If the server does not answer, or has not begun its first step.
        """
        ...


class Swapper(Protocol):
    """A running server's control socket. Every order is idempotent by epoch."""

    def slots(self) -> Sequence[SlotState]:
        """Report every slot.

        Raises
        ------
        TemporaryError
            If the server does not answer; it may be starting or gone.
        """
        ...

    def environments(self) -> Sequence[ServerEnvironment]:
        """Return what each process says that it runs on.

        Raises
        ------
        TemporaryError
            If the server, or one of its processes that listen, does not answer.
        """
        ...

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Fetch, verify, load, repack and self-check; nothing is active yet.

        Raises
        ------
        CandidateError
            If the runtime refuses the artifact; the incumbent stays.
        TemporaryError
            If the server does not answer.
        """
        ...

    def commit(self, order: SwapOrder) -> int:
        """Make a prepared order active and return how long the flip took, ns.

        A rollback to the original, or to an artifact still loaded, needs no prepare.

        Raises
        ------
        CandidateError
            If the runtime refuses: ``not-prepared``, ``stale-epoch``, ``unknown-slot``.
        PartialCommit
            If some processes have carried it out and others have not.
        TemporaryError
            If the server does not answer; it may or may not have carried the order out.
        """
        ...

    def abort(self, order: SwapOrder) -> None:
        """Drop what was prepared for an order that will not be committed; the rest stays.

        Processes that do not answer drop it by themselves after a while.
        """
        ...

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """Serve the original for a while (`on`), or the order in force again, for comparison.

        The order, its epoch and its counts stay; where no variant is in force nothing happens.

        Parameters
        ----------
        arm
            Label that records of steps have from then on, of at most 32 characters. The change
            happens between two steps then, also where nothing but the label changes.

        Raises
        ------
        CandidateError
            ``unknown-slot``; with `arm`, ``no-safe-point``.
        TemporaryError
            If the server does not answer.
        """
        ...

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches that run an order in force, and the buckets left out.

        Parameters
        ----------
        order
            In force; another epoch is refused.
        fraction
            Share of launches, 0 to 1; 0 only shadows the artifact.
        excluded
            All shape buckets that the original serves although they are within the guard.

        Raises
        ------
        CandidateError
            ``stale-epoch`` if another order is in force.
        TemporaryError
            If the server, or one of its processes, does not answer.
        """
        ...

    def samples(self) -> Sequence[WatchSample]:
        """Return what was counted per slot since its last order.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRule:
    """How much is taken of the inputs of one slot."""

    every: int
    """One launch in so many, per shape."""
    samples: int
    """Kept per shape."""
    max_bytes: int
    """Kept in one process of the server."""
    sample_bytes: int
    """Largest sample; launches with larger inputs give none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTensor:
    """One activation from a server; untrusted."""

    dtype: str
    """Element type without the ``torch.`` prefix."""
    shape: tuple[int, ...]
    """Lengths."""
    data: bytes
    """Its bytes, contiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedInputs:
    """Activations of one launch."""

    axes: Mapping[str, int]
    """Lengths of the variable axes."""
    tensors: Mapping[str, CapturedTensor]
    """By input; weights are never taken."""


class KernelTap(Protocol):
    """What a server's runtime saw of Triton launches; nothing of it is believed unread."""

    def observed(self) -> Sequence[Mapping[str, Any]]:
        """Return one record per kind of launch; see `retuned.lifting.records`.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...


class InputTap(Protocol):
    """Samples of what launches are given, for experiments; nothing is taken unless asked for."""

    def listen(self, definition: str, rule: CaptureRule | None) -> None:
        """Begin to sample a slot; None ends it and forgets what was taken. Safe to call again.

        Raises
        ------
        CandidateError
            ``unknown-slot``, ``unknown-op`` (an older runtime) or ``capture-forbidden``.
        TemporaryError
            If the server does not answer.
        """
        ...

    def captured(self, definition: Definition, *, max_bytes: int) -> Sequence[CapturedInputs]:
        """Return what was taken, of at most so many bytes; what does not fit is left out.

        Raises
        ------
        CandidateError
            As `listen`.
        TemporaryError
            If the server does not answer.
        """
        ...
