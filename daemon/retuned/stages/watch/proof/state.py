"""The state of a proof, which survives a restart, and the events that change it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof.account import Pace
from retuned.stages.watch.proof.design import MeasuredBlock
from retuned.stages.watch.proof.evidence import Capitals
from retuned.stages.watch.proof.normaliser import FeatureSums, FitRows, StepFit
from retuned.stages.watch.proof.records import (
    KernelTime,
    PairKind,
    PairPlan,
    PairResult,
    ProofReason,
    ProofReport,
    ProofSettings,
)


class Phase(StrEnum):
    PILOT = "pilot"
    """Sham pairs with the swap off."""
    SHORT = "short"
    """Pairs of short blocks, until one verdict is proven."""
    LONG = "long"
    """`helps` is provisional; pairs of long blocks. Between pairs the swap is on."""
    SENTINEL = "sentinel"
    """Pairs of long blocks of a swap that was kept, far apart, for one day."""
    DONE = "done"
    """The report is complete."""


class PilotPair(Record):
    """One sham pair that waits for the first fit."""

    plan: PairPlan
    first: FeatureSums
    second: FeatureSums


class ProofState(Record):
    """All that a proof has to remember. Store it after each change."""

    settings: ProofSettings = ProofSettings()
    began_s: float
    """Start of the proof, on a clock that continues over restarts, seconds."""
    toggle_s: float = Field(default=0.0, ge=0.0)
    """Cost of a toggle, seconds."""
    phase: Phase = Phase.PILOT
    plan: PairPlan | None = None
    """The pair that runs; None between pairs."""
    planned: int = Field(default=0, ge=0)
    """Pairs planned so far."""
    pilot: tuple[PilotPair, ...] = ()
    """Sham pairs before the first fit."""
    pilot_huge: int = Field(default=0, ge=0)
    """Steps of the pilot that are huge beside the others of their block."""
    pace: Pace = Pace()
    """Steps of the pilot by what sets their pace."""
    pilot_ended_s: float | None = None
    """End of the pilot; None before."""
    long_began_s: float | None = None
    """Start of the long blocks; None before."""
    rows: FitRows = FitRows()
    """Steps for the next fit; empty after the last."""
    fit: StepFit | None = None
    """Expected times; None during the pilot."""
    pairs: tuple[PairResult, ...] = ()
    """All results, sham and void pairs included."""
    capitals: Capitals = Capitals()
    forecast: float | None = None
    """After the pilot: the least effect that the longest duration can show, log ratio."""
    pauses: int = Field(default=0, ge=0)
    """Pauses for service levels."""
    paused: bool = False
    """Whether the proof is paused; the swap is off then."""
    met_since_s: float | None = None
    """During a pause: since when service levels are met; None if they are not."""
    kernels: tuple[KernelTime, ...] = ()
    """The kernel in place, in both arms; empty if not measured."""
    report: ProofReport | None = None
    """None until a verdict; not final while long blocks run."""

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def swap_is_on(self) -> bool:
        """Whether the swap must be on between pairs: while `helps` is provisional, or kept."""
        return self.phase in (Phase.LONG, Phase.SENTINEL) and not self.paused

    def of(self, kind: PairKind) -> list[PairResult]:
        """Return the pairs of one kind that count."""
        return [pair for pair in self.pairs if pair.kind is kind and pair.void is None]


@dataclass(frozen=True, slots=True)
class PairMeasured:
    """The planned pair ran to its end."""

    number: int
    first: MeasuredBlock
    second: MeasuredBlock
    at_s: float

    @property
    def blocks(self) -> tuple[MeasuredBlock, MeasuredBlock]:
        return self.first, self.second


@dataclass(frozen=True, slots=True)
class PairAbandoned:
    """The planned pair did not run to its end, such as after a restart of the daemon."""

    number: int
    at_s: float


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Service levels were compared; send it at the end of each block and while paused."""

    met: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Vetoed:
    """The variant failed: errors, a shadow check, a shape that loses, or latency."""

    at_s: float
    reason: ProofReason = ProofReason.ERRORS


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A freeze, a rollback, a drain or a restart of the server."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; send it while the server is idle."""

    at_s: float


@dataclass(frozen=True, slots=True)
class KernelsMeasured:
    """The kernel was measured in place; for the account only."""

    kernels: tuple[KernelTime, ...]
    """Since the recording began: a restart of the node begins another one."""
    at_s: float


Event = PairMeasured | PairAbandoned | ServiceLevel | Vetoed | Interrupted | Tick | KernelsMeasured
