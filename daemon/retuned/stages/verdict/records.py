"""Evidence and verdict: the judge's input and output."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from retuned.contract import Digest, Guard, Record
from retuned.stages.profile import ProfileSettings

_Position = Annotated[int, Field(ge=0)]
_Length = Annotated[int, Field(ge=0)]


class Status(StrEnum):
    """Three-valued, so that missing evidence can never promote."""

    PROMOTE = "promote"
    REJECT = "reject"
    AMBIGUOUS = "ambiguous"


class Reason(StrEnum):
    """Stable codes that dashboards, policies and tests use."""

    FASTER = "faster"
    CONTRACT = "contract-violated"
    COMPILE_FAILED = "compile-failed"
    BINARY_AUDIT = "binary-audit-failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    OUT_OF_MEMORY = "out-of-memory"
    OVER_LIMIT = "over-limit"
    OUT_OF_BOUNDS = "out-of-bounds"
    INPUT_MODIFIED = "input-modified"
    OUTPUT_NOT_WRITTEN = "output-not-written"
    NONDETERMINISTIC = "nondeterministic"
    WRONG_OUTPUT = "wrong-output"
    NAN_MISMATCH = "nan-mismatch"
    ROW_DEPENDENT = "row-dependent"
    TIMED_OUTPUT_WRONG = "timed-output-wrong"
    IMPOSSIBLY_FAST = "impossibly-fast"
    CLOCKS_DISAGREE = "clocks-disagree"
    SLOWER = "slower"
    NOT_FASTER_ENOUGH = "not-faster-enough"
    WITHIN_NOISE = "within-noise"
    TOO_FEW_SAMPLES = "too-few-samples"
    LOST_SEARCH = "lost-search"
    HARNESS_FAILED = "harness-failed"


class Interval(Record):
    """A ratio of times, incumbent over candidate: above 1 the candidate is faster."""

    lower: float = Field(gt=0.0, allow_inf_nan=False)
    """Lower confidence bound."""
    point: float = Field(gt=0.0, allow_inf_nan=False)
    """Estimate."""
    upper: float = Field(gt=0.0, allow_inf_nan=False)
    """Upper confidence bound."""
    confidence: float = Field(gt=0.0, lt=1.0)
    """Confidence of each bound alone (one-sided)."""

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.lower <= self.point <= self.upper:
            raise ValueError(f"bounds out of order: {self.lower} {self.point} {self.upper}")
        return self


class ShapeResult(Record):
    """Measurements at one shape."""

    axes: dict[str, _Length]
    weight: float = Field(ge=0.0, allow_inf_nan=False)
    """Launches per second in the profile."""
    incumbent_us: float = Field(gt=0.0, allow_inf_nan=False)
    """Median time of the incumbent, microseconds."""
    candidate_us: float = Field(gt=0.0, allow_inf_nan=False)
    """Median time of the candidate, microseconds."""
    speedup: Interval
    """Paired, interleaved, on block medians."""
    floor_us: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Physical floor: no kernel can be faster; 0 where unknown."""


class Verdict(Record):
    """The judge's result on one candidate."""

    status: Status
    reason: Reason
    gate: str
    """Gate that decided, ``G0`` to ``G6``."""
    candidate: Digest
    """Digest of the solution."""
    incumbent: Digest
    """Digest of the variant it was compared with."""
    detail: str = ""
    """One sentence with the numbers; text from candidates is shortened and untrusted."""
    speedup: Interval | None = None
    """Weighted by production launches; None where nothing was timed."""
    noise_floor_ratio: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Largest ratio two byte-identical clones showed in the same run; None if nothing was timed."""
    shapes: tuple[ShapeResult, ...] = ()
    guard: Guard = Guard()
    """Narrowed to the shapes where it wins."""
    error_ratio: float | None = Field(default=None, ge=0.0)
    """Largest error against float64, relative to the incumbent's own; None where not measured."""
    evidence: Digest | None = None
    """Digest of the raw numbers in the store."""

    @model_validator(mode="after")
    def _no_promotion_without_numbers(self) -> Verdict:
        if self.status is Status.PROMOTE:
            if self.speedup is None or self.noise_floor_ratio is None or not self.shapes:
                raise ValueError("a promotion needs speedup, noise floor and shapes")
            if self.speedup.lower <= max(1.0, self.noise_floor_ratio):
                raise ValueError(
                    "a promotion needs a lower bound above 1 and above the noise floor"
                )
        return self


class IncumbentNoise(Record):
    """How far an accepted variant may be from the incumbent at shapes of one size class."""

    bucket: tuple[Annotated[int, Field(ge=0, le=64)], ...] = Field(max_length=64)
    """Bit length of each variable axis, in declaration order: lengths within a factor of two."""
    rms: float = Field(gt=0.0, le=1.0)
    """Allowed difference, from both errors together, over the rms of the output.

    The incumbent's error is the measured one; the value is the largest over families and outputs.
    """


class Check(Record):
    """One gate's result on one candidate."""

    gate: str = Field(pattern=r"^G[0-6]$")
    reason: Reason | None = None
    """Why it failed; None where it passed."""
    detail: str = ""
    """One sentence with the numbers."""
    error_ratio: float | None = Field(default=None, ge=0.0)
    """Largest error relative to the incumbent's; None where the gate does not measure errors."""
    incumbent_noise: tuple[IncumbentNoise, ...] = Field(default=(), max_length=256)
    """By size class of shapes, if the gate measures errors; shadow checks use it as tolerance."""
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    """Numbers that no decision uses, such as the audit of a binary."""


class GroupTiming(Record):
    """Some shapes together, as a guard would select them."""

    members: tuple[_Position, ...] = Field(min_length=1)
    """Positions in `Timing.shapes`."""
    speedup: Interval
    """Production-weighted over the members, anytime-valid at the promotion's confidence."""
    p_value: float = Field(ge=0.0, le=1.0)
    """One-sided and anytime-valid, of "not faster by the required gain"; adjusted over finalists
    and groups."""


class Timing(Record):
    """A measurement from zero on held-out seeds."""

    shapes: tuple[ShapeResult, ...] = Field(min_length=1)
    """Per shape; their anytime-valid intervals at the regression guard's confidence."""
    groups: tuple[GroupTiming, ...] = Field(min_length=1)
    """All shapes first, then every smaller group that a guard can name."""
    noise_floor_ratio: float = Field(gt=0.0, allow_inf_nan=False)
    """Largest ratio two byte-identical clones showed in the same run."""
    blocks: int = Field(ge=0)
    """Fewest blocks of any shape."""
    pairs: int = Field(ge=0)
    """Fewest pairs of any shape."""
    processes: int = Field(ge=0)
    """Fresh processes the blocks come from."""
    looks: int = Field(default=1, ge=1)
    """How often the rule was evaluated; the bounds are valid for any number."""

    @model_validator(mode="after")
    def _whole(self) -> Timing:
        names = set(self.shapes[0].axes)
        if any(set(shape.axes) != names for shape in self.shapes):
            raise ValueError("shapes have different axes")
        places = [tuple(sorted(shape.axes.items())) for shape in self.shapes]
        if len(set(places)) != len(places):
            raise ValueError("a shape is there twice")
        every = tuple(range(len(self.shapes)))
        if self.groups[0].members != every:
            raise ValueError("the first group is not all shapes together")
        groups = [group.members for group in self.groups]
        if len(set(groups)) != len(groups):
            raise ValueError("a group is there twice")
        for members in groups:
            if tuple(sorted(set(members))) != members or members[-1] >= len(self.shapes):
                raise ValueError(f"a group of {len(self.shapes)} shapes has members {members}")
        return self


class Evidence(Record):
    """The judge's whole input."""

    candidate: Digest
    """Digest of the solution."""
    incumbent: Digest
    """Digest of the variant it was compared with."""
    checks: tuple[Check, ...] = ()
    """Results of the gates, in order."""
    search: Interval | None = None
    """Production-weighted speedup in the search; None where it was not timed."""
    finalist: bool = False
    """Whether it was chosen for re-measurement."""
    timing: Timing | None = None
    raw: Digest | None = None
    """Digest of the raw numbers in the store."""


class JudgeSettings(Record):
    """Thresholds of a promotion."""

    buckets: ProfileSettings = ProfileSettings()
    """How the profile rounded lengths: a guard extends down to the lowest length of a bucket."""
    min_gain_ratio: float = Field(default=0.01, ge=0.0)
    """Smallest saving of the kernel's own time that justifies a swap."""
    alpha: float = Field(default=0.01, gt=0.0, lt=0.5)
    """Chance of a false promotion over all finalists of one experiment."""
    common_share: float = Field(default=0.005, ge=0.0, le=1.0)
    """A shape with this share of the kernel's time must not get slower by `common_slowdown`."""
    common_slowdown: float = Field(default=1.01, ge=1.0)
    """Upper bound of candidate over incumbent at common shapes."""
    rare_slowdown: float = Field(default=1.05, ge=1.0)
    """Upper bound of candidate over incumbent at rare shapes."""
    min_blocks: int = Field(default=10, ge=2)
    """Fewest blocks per shape; fewer are not evidence."""
    min_pairs: int = Field(default=30, ge=2)
    """Fewest pairs per shape."""
    min_processes: int = Field(default=2, ge=1)
    """Fewest fresh processes: placement in memory differs between them."""
    physics_slack: float = Field(default=0.9, gt=0.0, le=1.0)
    """A time below this times the physical floor is a broken clock or a cheat."""
