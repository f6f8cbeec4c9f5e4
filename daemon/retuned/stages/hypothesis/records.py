"""What a belief is, and what it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from retuned.contract import Name, Record, Workload, digest_of


class Attempt(Record):
    """What an earlier experiment on the same hypothesis taught."""

    experiment: str
    """Its id."""
    reason: str
    """Reason code of its verdict."""
    detail: str = ""
    """One sentence, for example the best candidate and what it lost on."""


class Hypothesis(Record):
    """A kernel that may be made faster for the present workload."""

    id: str
    """Digest of what was believed; the same belief is never paid twice."""
    definition: Name
    """Definition of the kernel."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Shapes to tune for, weighted by the present profile."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take now."""
    expected_gain_ratio: float = Field(gt=0.0)
    """Believed time of the incumbent over time of the best variant."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of total GPU time that would be saved: share * (1 - 1 / gain)."""
    because: str
    """Why, one sentence for a person."""
    structures: tuple[Name, ...] = ()
    """Source structures to try first; empty means all."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier tries, oldest first; a refined hypothesis carries them."""
    world: str = ""
    """Digest of what it was believed of: the variant in production and the environment. In another
    world it is another belief, and may be tested again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCost:
    """One shape of a known definition in the present window."""

    workload: Workload
    """Lengths and launches per second."""
    gpu_time_ns: int
    """In the window."""
    median_ns: int
    """Of one launch of the incumbent."""
    floor_ns: int = 0
    """Roofline: no kernel can be faster; 0 where unknown."""


class HypothesisSettings(Record):
    """How gains are guessed before they are measured, and when it is not worth trying."""

    min_saving: float = Field(default=0.005, ge=0.0, le=1.0)
    """Least share of total GPU time that pays for an experiment."""
    unknown_gain: float = Field(default=1.15, ge=1.0)
    """Gain believed without roofline or prior: launch parameters alone leave 0 to 14 %."""
    reach: float = Field(default=0.4, gt=0.0, le=1.0)
    """Part of the way to the roofline, in logarithms, that a search is believed to go."""
    launch_ns: int = Field(default=5_000, ge=0)
    """Part of every launch that belongs to framework and driver: no other source saves it, and
    without it a kernel of a few microseconds looks far from its roofline."""
    max_gain: float = Field(default=4.0, gt=1.0)
    """Gains above this are not believed before they are measured."""
    max_shapes: int = Field(default=4, ge=1)
    """Most shapes of one hypothesis; those with most GPU time."""
    max_attempts: int = Field(default=3, ge=1)
    """Most experiments on one hypothesis and its refinements."""
    discount: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What a failed attempt leaves of the believed gain, in logarithms."""


def lengths(workload: Workload) -> str:
    """Return the lengths of a shape for a person."""
    return "x".join(f"{name}={length}" for name, length in workload.axes.items()) or "its one shape"


def named(body: Mapping[str, object]) -> Hypothesis:
    """Give a belief its id: what it is about and what was tried, not how large its numbers are.

    Two windows of one drift differ in every digit; they are still one belief.
    """
    unnamed = Hypothesis.model_validate({"id": "", **body})
    core = {
        "definition": unnamed.definition,
        "shapes": sorted(lengths(workload) for workload in unnamed.workloads),
        "structures": unnamed.structures,
        "attempts": [attempt.experiment for attempt in unnamed.attempts],
        "world": unnamed.world,
    }
    return unnamed.model_copy(update={"id": digest_of(core)})
