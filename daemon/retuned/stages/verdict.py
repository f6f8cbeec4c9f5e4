"""Stage 6, verdict: correct? faster? Status, stable reason code and numbers; ambiguity is an answer. Pure."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from retuned.contract import Digest, Guard, Record


class Status(StrEnum):
    """Three-valued, so that missing evidence can never promote."""

    PROMOTE = "promote"
    REJECT = "reject"
    AMBIGUOUS = "ambiguous"


class Reason(StrEnum):
    """Stable codes: dashboards, policies and tests name them."""

    FASTER = "faster"
    CONTRACT = "contract-violated"
    COMPILE_FAILED = "compile-failed"
    BINARY_AUDIT = "binary-audit-failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    OUT_OF_MEMORY = "out-of-memory"
    OUT_OF_BOUNDS = "out-of-bounds"
    INPUT_MODIFIED = "input-modified"
    OUTPUT_NOT_WRITTEN = "output-not-written"
    NONDETERMINISTIC = "nondeterministic"
    WRONG_OUTPUT = "wrong-output"
    NAN_MISMATCH = "nan-mismatch"
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

    lower: float = Field(gt=0.0)
    """Lower confidence bound."""
    point: float = Field(gt=0.0)
    """Estimate."""
    upper: float = Field(gt=0.0)
    """Upper confidence bound."""
    confidence: float = Field(gt=0.0, lt=1.0)
    """Of each bound on its own (one-sided)."""

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.lower <= self.point <= self.upper:
            raise ValueError(f"bounds out of order: {self.lower} {self.point} {self.upper}")
        return self


class ShapeResult(Record):
    """What was measured at one shape."""

    axes: dict[str, int]
    """Lengths of the variable axes."""
    weight: float = Field(ge=0.0)
    """Launches per second in the profile."""
    incumbent_us: float = Field(gt=0.0)
    """Median time of the incumbent, microseconds."""
    candidate_us: float = Field(gt=0.0)
    """Median time of the candidate, microseconds."""
    speedup: Interval
    """Paired, interleaved, on block medians."""
    floor_us: float = Field(default=0.0, ge=0.0)
    """Physics: no kernel can be faster; 0 where unknown."""


class Verdict(Record):
    """The judge's answer on one candidate."""

    status: Status
    """What may follow."""
    reason: Reason
    """Stable code."""
    gate: str
    """Gate that decided, ``G0`` to ``G6``."""
    candidate: Digest
    """Digest of the solution."""
    incumbent: Digest
    """What it was compared with."""
    detail: str = ""
    """One sentence with the numbers; text from candidates is shortened and never trusted."""
    speedup: Interval | None = None
    """Production-weighted; None where nothing was timed."""
    noise_floor_ratio: float | None = Field(default=None, gt=0.0)
    """Largest ratio two byte-identical clones showed in the same run; None where nothing was timed."""
    shapes: tuple[ShapeResult, ...] = ()
    """Per shape."""
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
