"""Records of a live proof: settings, steps, pairs, verdicts and the report.

Effects are natural logarithms of a ratio of times, ``log(time on / time off)``: a negative effect
is a swap that makes steps faster. `percent_of` turns one into a change of step time in per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from retuned.contract import Record
from retuned.stages.gate import LiveProof

Floats = NDArray[np.float64]
Seconds = Annotated[float, Field(ge=0.0, lt=1e9)]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
MAX_PAIRS = 4096
"""Most pairs of a proof that a node reports; half an hour has 900."""
MOST_LENGTHS = 16
"""Lengths of a kernel in place in a report, those with the most time first."""
MOST_AXES = 16
"""Most variable axes of a kernel."""
LONGEST_LAUNCH_S = 3600.0
"""No launch takes longer, seconds."""
Length = Annotated[int, Field(ge=0, le=1 << 53)]
"""Length of one variable axis."""
LaunchesPerStep = Annotated[float, Field(ge=0.0, le=1e15, allow_inf_nan=False)]
LaunchTime = Annotated[float, Field(gt=0.0, le=LONGEST_LAUNCH_S, allow_inf_nan=False)]
_POLICY = LiveProof()
"""The defaults of a policy."""


class Arm(StrEnum):
    """What runs behind the slot for whole steps."""

    OFF = "off"
    """The original."""
    ON = "on"
    """The variant of the swap."""

    @property
    def other(self) -> Arm:
        return Arm.ON if self is Arm.OFF else Arm.OFF


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward step of the server, recorded in its process."""

    index: int
    """Number of the step in its process."""
    arm: Arm
    """What ran in it."""
    prefill: int
    """Prompt tokens that were scheduled."""
    decode: int
    """Sequences that decoded."""
    context: int
    """Tokens of context of those sequences."""
    graph: int | None
    """Size of the replayed graph; None if the step ran without one."""
    period_s: float | None
    """End of the previous step to the end of this one, seconds; None after idling."""
    busy_s: float | None
    """First to last GPU work, seconds; None if not measured."""
    host_s: float | None
    """Host time until the last launch, seconds; None if not measured."""
    ended_s: float
    """End of the step, seconds on the clock of the blocks."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps of one block as columns of equal length; the form in which they are computed with."""

    on: NDArray[np.bool_]
    """Whether the variant ran."""
    prefill: Floats
    """Prompt tokens."""
    decode: Floats
    """Sequences that decoded."""
    context: Floats
    """Tokens of context."""
    graph: NDArray[np.int64]
    """Size of the graph; 0 without one."""
    period_s: Floats
    """Seconds; NaN after idling."""
    busy_s: Floats
    """Seconds; NaN if not measured."""
    host_s: Floats
    """Seconds; NaN if not measured."""
    ended_s: Floats
    """Seconds."""

    def __len__(self) -> int:
        return len(self.period_s)

    def pick(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> StepColumns:
        """Return these rows only."""
        return StepColumns(
            on=self.on[keep],
            prefill=self.prefill[keep],
            decode=self.decode[keep],
            context=self.context[keep],
            graph=self.graph[keep],
            period_s=self.period_s[keep],
            busy_s=self.busy_s[keep],
            host_s=self.host_s[keep],
            ended_s=self.ended_s[keep],
        )


def columns_of(steps: Sequence[StepRecord]) -> StepColumns:
    """Return the steps as columns."""

    def floats(values: Sequence[float | None]) -> Floats:
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    return StepColumns(
        on=np.array([step.arm is Arm.ON for step in steps], dtype=np.bool_),
        prefill=floats([step.prefill for step in steps]),
        decode=floats([step.decode for step in steps]),
        context=floats([step.context for step in steps]),
        graph=np.array([step.graph or 0 for step in steps], dtype=np.int64),
        period_s=floats([step.period_s for step in steps]),
        busy_s=floats([step.busy_s for step in steps]),
        host_s=floats([step.host_s for step in steps]),
        ended_s=floats([step.ended_s for step in steps]),
    )


def joined(parts: Sequence[StepColumns]) -> StepColumns:
    """Return the steps of several stretches as one, in order."""
    names = [each.name for each in fields(StepColumns)]
    given = parts or (columns_of(()),)
    return StepColumns(
        **{name: np.concatenate([getattr(part, name) for part in given]) for name in names}
    )


class ProofSettings(Record):
    """Thresholds of a proof; `live_proof` in a policy."""

    mode: Literal["required", "observe", "off"] = "required"
    """Whether a verdict has consequences; `observe` measures and keeps."""
    block_s: float = Field(default=1.0, gt=0.0, le=600.0)
    """Shortest block, seconds."""
    least_steps: int = Field(default=16, ge=1)
    """Steps that a block waits for."""
    most_block_s: float = Field(default=10.0, gt=0.0, le=600.0)
    """Longest block, seconds, however few steps it has."""
    turn_steps: int = Field(default=0, ge=0, le=64)
    """Steps of one turn, where the two labels of a short pair take turns; 0 gives each one block.

    A host that changes its pace every second moves blocks of a second by 10 to 60 %, and turns of
    four steps by 4 %. What a switch changes must be there with the next step."""
    turns: int = Field(default=8, ge=2, le=64, multiple_of=2)
    """Turns of a pair, half of them of each label."""
    toggles_per_cost: float = Field(default=200.0, ge=1.0)
    """A block lasts at least this many times the cost of a toggle."""
    burn_in_s: float = Field(default=0.25, ge=0.0)
    """Steps that end within this time of the start of a block are left out, seconds."""
    burn_in_steps: int = Field(default=2, ge=0)
    """Steps at the start of a block that are left out in any case."""
    least_counted: int = Field(default=4, ge=1)
    """A pair is void if a block has fewer steps after the burn-in."""
    pilot_pairs: int = Field(default=30, ge=4)
    """Sham pairs before the first pair."""
    least_pilot_pairs: int = Field(default=10, ge=4)
    """Enough sham pairs if the pilot takes a third of the longest duration."""
    max_scale: float = Field(default=0.30, gt=0.0)
    """Scale of sham pairs above which steps are too irregular for a proof, log ratio.

    A vLLM on a CPU with 20 steps a second, beside other work on two cores, had 0.13: half an hour
    of that shows effects from 2.6 %."""
    min_effect: float = Field(default=_POLICY.min_effect, gt=0.0, lt=1.0)
    """Smaller effects do not count, log ratio."""
    max_harm: float = Field(default=_POLICY.max_harm, gt=0.0)
    """Longer step time that stops the proof before it is proven, ratio minus one."""
    harm_pairs: int = Field(default=6, ge=1)
    """Consecutive pairs beyond `max_harm` that stop the proof."""
    ask: Literal["effect", "ceiling"] = "effect"
    """`ceiling` asks only whether steps with the arm are longer by less than `min_effect`: then a
    smaller effect does not end the proof."""
    confidence: Share = 0.99
    """Of each side; 0.99 is a bound of 100 on each E-value."""
    max_duration_s: float = Field(default=_POLICY.max_duration.total_seconds(), gt=0.0)
    """Longest time until short blocks decide, seconds by the wall, pilot and pauses included."""
    long_blocks: int = Field(default=_POLICY.long_blocks, ge=0)
    """Pairs of long blocks after `helps`; 0 makes the verdict of short blocks final."""
    long_block_s: float = Field(default=10.0, gt=0.0)
    """Length of such a block, seconds."""
    long_within_s: float = Field(default=3600.0, gt=0.0)
    """Longest time for all long blocks, seconds by the wall."""
    slo_clear_s: float = Field(default=60.0, ge=0.0)
    """How long service levels must be met before a paused proof continues, seconds."""
    max_pauses: int = Field(default=3, ge=1)
    """This pause ends the proof."""
    on_no_effect: Literal["withdraw", "keep"] = "withdraw"
    """Consequence of no measurable effect; `keep` needs proof of less GPU time."""
    on_too_little_traffic: Literal["park", "withdraw", "keep"] = "park"
    """Consequence of too little traffic."""
    retries: int = Field(default=3, ge=0)
    """Further proofs of a parked swap before it expires."""

    @property
    def log_bound(self) -> float:
        """Logarithm of the E-value that decides."""
        return -math.log(1.0 - self.confidence)

    @property
    def log_max_harm(self) -> float:
        return math.log1p(self.max_harm)


def settings_of(rule: LiveProof) -> ProofSettings:
    """Return the settings of a proof under a policy's rule."""
    return ProofSettings(
        mode=rule.mode.value,
        min_effect=rule.min_effect,
        max_harm=rule.max_harm,
        max_duration_s=rule.max_duration.total_seconds(),
        long_blocks=rule.long_blocks,
        on_no_effect=rule.on_no_effect.value,
        on_too_little_traffic=rule.on_too_little_traffic.value,
        retries=0,
    )


class PairKind(StrEnum):
    SHAM = "sham"
    """Both blocks ran the original; the labels are coins all the same."""
    SHORT = "short"
    """Short blocks, which decide the sign."""
    LONG = "long"
    """Long blocks after `helps`, which decide the size."""


class VoidReason(StrEnum):
    """Why a pair counts for nothing."""

    FEW_STEPS = "few-steps"
    """A block had too few steps after the burn-in."""
    MIXED_ARMS = "mixed-arms"
    """A step ran another arm than planned."""
    ABANDONED = "abandoned"
    """The pair did not run to its end: a pause, or a restart of the daemon."""


class PairPlan(Record):
    """One pair, planned before its first step; store it before the first block begins."""

    number: int = Field(ge=0)
    """Number of the pair in the proof; the pilot's pairs come first."""
    kind: PairKind
    first: Arm
    """Label of the first block, by the coin; the second block has the other label."""
    block_s: float = Field(gt=0.0)
    """Shortest length of each block, seconds."""
    most_block_s: float = Field(gt=0.0)
    """Longest length of each block, seconds."""
    least_steps: int = Field(ge=1)
    """Steps that each block waits for."""
    turn_steps: int = Field(default=0, ge=0)
    """Steps of one turn; 0 gives each label one block."""
    turns: int = Field(default=0, ge=0)
    """Number of turns; 0 without."""

    @property
    def order(self) -> tuple[Arm, ...]:
        """Labels of the turns: A B B A B A A B and so on, so that a trend gives both the same.

        The coin has decided which label is A.
        """
        return tuple(self.labels[at.bit_count() % 2] for at in range(self.turns))

    @property
    def labels(self) -> tuple[Arm, Arm]:
        return self.first, self.first.other

    @property
    def runs(self) -> tuple[Arm, Arm]:
        """What the two blocks must run: the original twice in a sham pair."""
        return (Arm.OFF, Arm.OFF) if self.kind is PairKind.SHAM else self.labels


class ArmSums(Record):
    """Sums over the counted steps of one block."""

    steps: int = Field(default=0, ge=0)
    """Counted steps: after the burn-in, and not after idling."""
    seconds: float = 0.0
    """Sum of their periods."""
    excess_s: float = 0.0
    """Part of `seconds` by which slow steps exceed the time from which a step is slow."""
    expected_s: float = 0.0
    """What steps of this composition take, seconds, by a fit of earlier blocks."""
    slow: int = Field(default=0, ge=0)
    """Steps far over the expected time."""
    huge: int = Field(default=0, ge=0)
    """Steps over ten times the expected time."""
    busy_s: float | None = None
    """GPU time, seconds; None if a step lacks it."""
    host_s: float | None = None
    """Host time, seconds; None if a step lacks it."""
    wall_s: float = 0.0
    """Length of the block, seconds."""


class PairResult(Record):
    """The result of one pair."""

    number: int = Field(ge=0)
    kind: PairKind
    first: Arm
    """Label of the first block."""
    d: float | None = None
    """Log ratio of normalised step time, on over off; None if void."""
    scale: float | None = None
    """Noise of d that was expected before the pair, log ratio; None if void."""
    d_busy: float | None = None
    """The same log ratio of GPU time; None if not measured."""
    on: ArmSums = ArmSums()
    off: ArmSums = ArmSums()
    void: VoidReason | None = None
    """Why the pair does not count; None if it does."""

    @property
    def sham(self) -> bool:
        return self.kind is PairKind.SHAM


class Verdict(StrEnum):
    HELPS = "helps"
    HARMS = "harms"
    NO_MEASURABLE_EFFECT = "no-measurable-effect"
    TOO_LITTLE_TRAFFIC = "too-little-traffic"
    NOT_CONCLUDED = "not-concluded"
    """The proof stopped for a reason that is not the swap's effect."""


class ProofReason(StrEnum):
    """Stable codes for policies and metrics."""

    FASTER = "faster"
    SLOWER = "slower"
    SLOW_STEPS = "slow-steps"
    """More slow steps with the swap; under `no-measurable-effect`: they use up its gain."""
    LATENCY_WORSE = "latency-worse"
    ERRORS = "errors"
    """A launch failed, or a shadow check did not agree."""
    SHAPE_WORSE = "shape-worse"
    WITHIN_MARGIN = "within-margin"
    """The effect is proven to be within the smallest effect that counts."""
    NOT_SHOWN_IN_TIME = "not-shown-in-time"
    FEW_STEPS = "few-steps"
    NOISE = "noise"
    SLO_PRESSURE = "slo-pressure"
    INTERRUPTED = "interrupted"
    CARRY_OVER = "carry-over"
    """Faster; long blocks show another size than short ones."""
    INSTRUMENT_BROKEN = "instrument-broken"
    """Sham pairs showed an effect."""
    NOT_SWITCHABLE = "not-switchable"
    """Steps are too irregular for a comparison."""
    NO_SERVICE_LEVELS = "no-service-levels"
    """The policy has service levels, and Retuned cannot read the server's."""
    BOOT_SPREAD = "boot-spread"
    """Boots of one configuration differ by more than the effect, or by too much to see one."""
    FEW_BOOTS = "few-boots"
    """Too few pairs of boots counted."""
    CONTRADICTED = "contradicted"
    """A node's verdict does not follow from the pairs that it reports."""


class EvidenceLogs(Record):
    """Natural logarithms of the E-values; the bound of 100 is 4.6."""

    faster: float = 0.0
    """Against: the swap does not make steps faster."""
    slower: float = 0.0
    """Against: the swap does not make steps slower."""
    above_margin: float = 0.0
    """Against: steps are faster by the smallest effect or more."""
    below_margin: float = 0.0
    """Against: steps are slower by the smallest effect or more."""
    slow_steps: float = 0.0
    """Against: the swap does not make more slow steps."""
    busy_faster: float = 0.0
    """Against: the swap does not shorten GPU time. It never decides `helps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLaunches:
    """Launches of the proven slot in one arm, of one length, since the proof's recording began."""

    arm: Arm
    lengths: tuple[int, ...]
    """Of the variable axes."""
    launches: int
    """All of them, those that graphs replay excepted."""
    times_s: tuple[float, ...]
    """Times of some of them, seconds."""


class KernelTime(Record):
    """The kernel in place at one length: medians of both arms.

    The bounds are those of numbers that a runtime can have: a node's claim has these records.
    """

    lengths: tuple[Length, ...] = Field(max_length=MOST_AXES)
    """Of the variable axes."""
    launches: LaunchesPerStep
    """Launches per step."""
    off_s: LaunchTime | None = None
    """Median time without the swap, seconds; None with too few times."""
    on_s: LaunchTime | None = None
    """Median time with the swap, seconds; None with too few times."""

    @property
    def speedup(self) -> float | None:
        """Time without the swap over the time with it; None where one is not known."""
        return self.off_s / self.on_s if self.off_s is not None and self.on_s is not None else None


class StepAccount(Record):
    """Where the time of a step went: changes per step with the swap, seconds; negative is less.

    Each is the median over pairs, for steps of equal composition.
    """

    kernel_s: float | None = None
    """Time of the kernel itself; None if kernels were not measured in place."""
    busy_s: float | None = None
    """GPU time; None if not measured."""
    gap_s: float | None = None
    """Time without GPU work; None if GPU time was not measured."""
    host_s: float | None = None
    """Host time until the last launch; None if not measured."""
    period_s: float | None = None
    """Time of the step; None without pairs."""
    launches: float | None = None
    """Launches through the slot per step; None if not counted."""
    host_per_launch_s: float | None = None
    """Change of host time per launch; None if either is not known."""
    host_bound: bool = False
    """Whether the host sets the pace: the gaps took up what the GPU saved."""
    elsewhere: bool = False
    """Whether other GPU work got slower: the kernel saved time and GPU time did not fall."""
    kernels: tuple[KernelTime, ...] = ()
    """The kernel in place, by its lengths; launches that graphs replay are not part of it."""


class ProofClaim(Record):
    """What a node reports of a proof that has ended: untrusted until `replay` has judged it."""

    verdict: Verdict
    reason: ProofReason
    pairs: tuple[PairResult, ...] = Field(max_length=MAX_PAIRS)
    """All results in the order of their numbers, sham and void pairs included."""
    pilot_huge: int = Field(default=0, ge=0, lt=1 << 53)
    """As `ProofState.pilot_huge`."""
    seconds: Seconds = 0.0
    """Time since the pilot ended, by the wall."""
    kernels: tuple[KernelTime, ...] = Field(default=(), max_length=MOST_LENGTHS)
    """As `ProofState.kernels`: the node's word, for the account only. No verdict follows from it.
    """

    @model_validator(mode="after")
    def _each_length_once(self) -> ProofClaim:
        lengths = [each.lengths for each in self.kernels]
        if len(set(lengths)) < len(lengths):
            raise ValueError("the kernel in place has a length twice")
        return self

    @model_serializer(mode="wrap")
    def _without_nothing(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave an empty field out: a side of an older release refuses it."""
        body: dict[str, Any] = write(self)
        if not self.kernels:
            body.pop("kernels", None)
        return body


class ProofReport(Record):
    """The result of a proof."""

    verdict: Verdict
    reason: ProofReason
    final: bool = True
    """False for `helps` until long blocks agree."""
    effect: float | None = None
    """Log ratio of step time, on over off; None without pairs."""
    low: float | None = None
    """Lower end of the interval that neither side rejects; None if it is open."""
    high: float | None = None
    """Upper end; None if it is open."""
    visible: float | None = None
    """Least effect that so many pairs show in four of five proofs, log ratio.

    Without pairs that count, of the sham pairs; None below four."""
    pairs: int = Field(default=0, ge=0)
    """Pairs that count, sham pairs not included."""
    void_pairs: int = Field(default=0, ge=0)
    """Pairs that do not, sham pairs not included."""
    seconds: float = Field(default=0.0, ge=0.0)
    """Time since the pilot ended, by the wall."""
    exposed_s: float = Field(default=0.0, ge=0.0)
    """Of it, in blocks with the swap on."""
    evidence: EvidenceLogs = EvidenceLogs()
    account: StepAccount = StepAccount()

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON-able data."""
        return self.model_dump(mode="json")


def percent_of(effect: float) -> float:
    """Return an effect as a change of step time in per cent.

    Examples
    --------
    >>> round(percent_of(-0.0202), 2)
    -2.0
    """
    return 100.0 * math.expm1(effect)
