"""Boots of replicas as units of a live proof: the measure of one, and how boots differ. Pure.

Two boots of one server with one configuration differ in addresses of memory, in settled clocks and
in captured graphs. A longer comparison of the two does not remove that difference.
So a boot gives one number, the logarithm of its normalised step time, and the **boot spread** is
the standard deviation of that number over boots of the same configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import numpy as np
from pydantic import Field, StringConstraints

from retuned.contract import Digest, Record
from retuned.stages.gate import CANARY_MOST_PAIRS, CANARY_SHAM_PAIRS, LiveProof
from retuned.stages.watch.proof.evidence import Bets, location, log_e, log_es
from retuned.stages.watch.proof.normaliser import (
    FEATURES,
    ROWS_PER_BLOCK,
    FeatureSums,
    FitRows,
    StepFit,
    sums_of,
)
from retuned.stages.watch.proof.records import (
    Arm,
    ArmSums,
    ProofReport,
    Share,
    StepColumns,
)

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
LEAST_SHAM_PAIRS = 4
"""A/A pairs below which the boot spread is not known."""
LEAST_PAIRS = 4
"""Pairs below which boots lead to no verdict but that of a guardrail."""
_SLICES = 4
_MOST_ROWS = _SLICES * ROWS_PER_BLOCK
_MOST_GRAPHS = 512
_SHORTEST_S, _LONGEST_S = 1e-6, 1e6
_MOST_TOKENS = 1e15
_LEAST_SCALE = 1e-4
_ONE_IN_TEN = 1.2815515655
"""Quantile of the normal distribution that one value in ten exceeds."""
_BETS = Bets((2, 3, 4, 5), np.array([0.10, 0.30, 0.35, 0.25]), farthest_z=4.0)
"""On shifts of 0.6, 1.2, 2.4 and 4.8 scales. Pairs of boots are few: a difference counts up to four
scales, so that eight pairs that agree exceed a bound of 100, and seven cannot. Both keep a bet odd
in the difference, which is all that the coin needs."""
_FARTHEST = 0.5


class BootSettings(Record):
    """Thresholds of a live proof by boots of replicas."""

    leave_out_s: float = Field(default=600.0, ge=0.0, le=1e5)
    """Steps that end within this time of the boot's first step are left out, seconds."""
    window_s: float = Field(default=600.0, gt=0.0, le=1e5)
    """Length of the window after that, seconds."""
    least_steps: int = Field(default=200, ge=1)
    """A pair is void if a boot has fewer steps in its window."""
    together_s: float = Field(default=300.0, ge=0.0)
    """A pair is void if its boots start further apart, seconds."""
    sham_pairs: int = Field(default=CANARY_SHAM_PAIRS, ge=LEAST_SHAM_PAIRS, le=256)
    """A/A pairs: both boots hold the original. They show the boot spread and fit the normaliser."""
    most_pairs: int = Field(default=CANARY_MOST_PAIRS, ge=LEAST_PAIRS, le=256)
    """Pairs that count after which the proof ends."""
    open_pairs: int = Field(default=16, ge=1, le=256)
    """Most pairs that run at one time."""
    max_duration_s: float = Field(default=7 * 86_400.0, gt=0.0)
    """Longest time until a verdict, seconds by the wall."""
    min_effect: float = Field(default=LiveProof().min_effect, gt=0.0, lt=1.0)
    """Smaller effects do not count, log ratio; if boots differ by more, the boot spread counts."""
    max_harm: float = Field(default=LiveProof().max_harm, gt=0.0)
    """Longer step time that stops the proof before it is proven, ratio minus one."""
    harm_pairs: int = Field(default=2, ge=2)
    """Consecutive pairs beyond `max_harm` and beyond the boot spread that stop the proof."""
    harm_scales: float = Field(default=3.0, ge=2.0)
    """How many times the noise of a pair such a pair must exceed."""
    confidence: Share = 0.99
    """Of each side; 0.99 is a bound of 100 on each E-value."""

    @property
    def log_bound(self) -> float:
        """Logarithm of the E-value that decides."""
        return -math.log(1.0 - self.confidence)


def boot_settings_of(rule: LiveProof) -> BootSettings:
    """Return the settings of a proof by boots under a policy's rule.

    `maxDuration` is for proofs that switch within one process: by default one boot takes 20 minutes
    here.
    """
    return BootSettings(
        leave_out_s=rule.canary_leave_out.total_seconds(),
        window_s=rule.canary_window.total_seconds(),
        min_effect=rule.min_effect,
        max_harm=rule.max_harm,
        open_pairs=rule.canary_pairs,
    )


class BootWindow(Record):
    """What one replica reports of one boot: untrusted until `check_window` has passed."""

    replica: Name
    """The replica, such as the name of its pod."""
    boot: Name
    """Identity of this start of its server process; no two starts share one."""
    environment: Digest
    """What the server runs on."""
    arm: Arm
    """What every counted step ran with."""
    began_s: float = Field(ge=0.0)
    """When the server made its first step, seconds on a clock that all replicas share."""
    sums: FeatureSums
    """Sums over the counted steps."""
    rows: FitRows = FitRows()
    """Some of them, for the normaliser; used of A/A boots only."""


def window_of(
    steps: StepColumns,
    *,
    replica: str,
    boot: str,
    environment: Digest,
    began_s: float,
    opens_s: float,
    closes_s: float,
) -> BootWindow | None:
    """Return what is measured of one boot, or None if steps of its window ran in both arms.

    Parameters
    ----------
    steps
        Steps of the boot, in order.
    replica, boot, environment, began_s
        As in `BootWindow`.
    opens_s, closes_s
        Begin and end of the window on the clock of the steps, seconds; a step that ends within it
        counts.
    """
    keep = (steps.ended_s >= opens_s) & (steps.ended_s < closes_s)
    keep &= np.isfinite(steps.period_s) & (steps.period_s > 0.0)
    kept = steps.pick(keep)
    if len(kept) and bool(kept.on.any()) != bool(kept.on.all()):
        return None
    rows = FitRows()
    for part in np.array_split(np.arange(len(kept)), _SLICES):
        rows = rows.extend(kept.pick(part))
    return BootWindow(
        replica=replica,
        boot=boot,
        environment=environment,
        arm=Arm.ON if len(kept) and bool(kept.on.all()) else Arm.OFF,
        began_s=began_s,
        sums=sums_of(kept, wall_s=closes_s - opens_s),
        rows=rows,
    )


def check_window(window: BootWindow) -> None:
    """Refuse numbers that no boot has.

    Raises
    ------
    ValueError
        With what is wrong.
    """
    sums = window.sums
    if sums.steps < 0 or len(sums.features) != FEATURES or not 0.0 <= sums.wall_s <= _LONGEST_S:
        raise ValueError(f"boot {window.boot} has numbers that no window has")
    if sums.steps and not _SHORTEST_S <= sums.seconds <= _LONGEST_S:
        raise ValueError(f"boot {window.boot} has times that no window has")
    if not all(0.0 <= each <= _MOST_TOKENS for each in sums.features):
        raise ValueError(f"boot {window.boot} has steps of a composition that no step has")
    counts = [count for _, count in sums.graphs]
    if len(counts) > _MOST_GRAPHS or min(counts, default=0) < 0 or sum(counts) != sums.steps:
        raise ValueError(f"boot {window.boot} has graphs that do not add up to its steps")
    if len(window.rows.rows) > min(_MOST_ROWS, sums.steps):
        raise ValueError(f"boot {window.boot} has more rows than steps")
    for *composition, period in window.rows.rows:
        if not (0.0 < period <= _LONGEST_S and all(0 <= n <= _MOST_TOKENS for n in composition)):
            raise ValueError(f"boot {window.boot} has a row that no step has")


def normalised(window: BootWindow, known_fit: StepFit) -> ArmSums:
    """Return the sums of a boot beside what its steps should take."""
    sums = window.sums
    return ArmSums(
        steps=sums.steps,
        seconds=sums.seconds,
        expected_s=known_fit.expected_of_sums(sums),
        wall_s=sums.wall_s,
    )


class BootSpread(Record):
    """How far boots of one configuration differ, log ratio of normalised step time."""

    measured: float = Field(ge=0.0)
    """Standard deviation of one boot, from A/A pairs alone."""
    sd: float = Field(ge=0.0)
    """The same from all pairs; of later pairs the deviation from their common mean counts."""
    high: float = Field(ge=0.0)
    """Its upper end: 9 of 10 times the true one is lower, if boots differ as a normal distribution.
    Never below `measured`."""
    sham_pairs: int = Field(ge=0)
    """A/A pairs."""
    pairs: int = Field(default=0, ge=0)
    """Later pairs."""

    @property
    def scale(self) -> float:
        """Noise of the difference of two boots."""
        return max(math.sqrt(2.0) * self.sd, _LEAST_SCALE)

    @property
    def high_scale(self) -> float:
        """Upper end of it."""
        return max(math.sqrt(2.0) * self.high, _LEAST_SCALE)


def spread_of(sham: Sequence[float], earlier: Sequence[float] = ()) -> BootSpread:
    """Return the boot spread from differences of pairs.

    Parameters
    ----------
    sham
        Differences of A/A pairs, log ratio; their true mean is 0.
    earlier
        Differences of pairs of the proof; their mean is the effect.

    Examples
    --------
    >>> found = spread_of([0.02, -0.02, 0.02, -0.02])
    >>> round(found.sd, 4), round(found.high, 4)
    (0.0141, 0.0275)

    Raises
    ------
    ValueError
        If there are too few A/A pairs.
    """
    if len(sham) < LEAST_SHAM_PAIRS:
        raise ValueError(f"a boot spread needs {LEAST_SHAM_PAIRS} A/A pairs, got {len(sham)}")
    total, free = sum(each * each for each in sham), len(sham)
    measured = math.sqrt(total / (2.0 * free))  # two boots in a difference
    if len(earlier) > 1:
        mean = sum(earlier) / len(earlier)
        total += sum((each - mean) ** 2 for each in earlier)
        free += len(earlier) - 1
    variance = total / (2.0 * free)
    return BootSpread(
        measured=measured,
        sd=math.sqrt(variance),
        high=max(measured, math.sqrt(variance * free / _low_chi_square(free))),
        sham_pairs=len(sham),
        pairs=len(earlier),
    )


def _low_chi_square(free: int) -> float:
    """Return the value that nine of ten draws exceed (Wilson and Hilferty), within 1 %."""
    part = 2.0 / (9.0 * free)
    return float(free * (1.0 - part - _ONE_IN_TEN * math.sqrt(part)) ** 3)


def log_e_of_boots(d: Sequence[float], scales: Sequence[float], *, m: float, side: int) -> float:
    """Return log E(m, side) after these pairs of boots; see `evidence.log_e`."""
    return log_e(d, scales, m=m, side=side, bets=_BETS)


def interval_of_boots(
    d: Sequence[float], scales: Sequence[float], *, log_bound: float
) -> tuple[float | None, float | None]:
    """Return the effects that neither side rejects, by inversion as in `evidence.interval`.

    An end is None if no effect on its side, up to a log ratio of 0.5, is rejected.
    """
    if not len(d):
        return None, None
    values, widths = np.asarray(d, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    at, width = location(d, scales), float(widths[-1])
    offsets = np.arange(0.0, _FARTHEST, 0.02 * width)
    ends: list[float | None] = []
    for side in (1, -1):
        logs = log_es(values, widths, at - side * offsets, side=side, bets=_BETS)
        rejected = logs >= log_bound
        found = at - side * float(offsets[int(rejected.argmax())])
        ends.append(found if rejected.any() else None)
    return ends[0], ends[1]


class BootVoid(StrEnum):
    """Why a pair of boots counts for nothing; times never decide it."""

    FEW_STEPS = "few-steps"
    """A boot has too few steps in its window."""
    MIXED_ARMS = "mixed-arms"
    """A boot ran another arm than assigned."""
    ENVIRONMENTS_DIFFER = "environments-differ"
    """A boot ran on something else than the proof."""
    NOT_TOGETHER = "not-together"
    """The boots started too far apart."""
    ABANDONED = "abandoned"
    """A boot failed, was replaced, or did not report."""


class BootPlan(Record):
    """Two boots that start together; store it before either of them begins."""

    number: int = Field(ge=0)
    """Number of the pair in the proof; A/A pairs come first."""
    sham: bool
    """Whether it is an A/A pair: both boots hold the original."""
    replicas: tuple[Name, Name]
    """Which replicas boot."""
    first: Arm
    """Label of the first of them, by the coin; the second has the other label."""

    @property
    def labels(self) -> tuple[Arm, Arm]:
        return self.first, self.first.other

    @property
    def runs(self) -> tuple[Arm, Arm]:
        """What the two boots must hold: the original twice in an A/A pair."""
        return (Arm.OFF, Arm.OFF) if self.sham else self.labels


class BootPair(Record):
    """The result of one pair of boots."""

    plan: BootPlan
    d: float | None = None
    """Log ratio of normalised step time, with the swap over without; None if void."""
    scale: float | None = None
    """Noise of d that was expected before the pair, log ratio; None if void."""
    on: ArmSums = ArmSums()
    """Of the boot labelled with the swap."""
    off: ArmSums = ArmSums()
    void: BootVoid | None = None
    """Why the pair does not count; None if it does."""
    boots: tuple[str, ...] = ()
    """Which starts it is about, in the order of the plan; empty if abandoned."""


class ReplicaReport(ProofReport):
    """The result of a proof by boots; pairs are pairs of boots."""

    spread: BootSpread | None = None
    """How far boots of one configuration differ; None before the A/A pairs were complete."""
