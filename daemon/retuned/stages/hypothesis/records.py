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
    seconds: float = Field(default=0.0, ge=0.0)
    """Device time that its candidates cost; 0 where it was not measured."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """How many candidates ended with each reason code."""
    hopeless: tuple[Name, ...] = ()
    """Structures of which nothing worked."""
    lost: tuple[Workload, ...] = ()
    """Shapes at which every finalist was slower than the incumbent."""
    lost_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the incumbent's time that these shapes take."""


class Hypothesis(Record):
    """A kernel that may be made faster for the present workload."""

    id: str
    """Digest of what was believed; the same belief is never paid twice."""
    definition: Name
    """Definition of the kernel."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Shapes to tune for, weighted by the present profile."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of kernel time these shapes take now."""
    expected_gain_ratio: float = Field(gt=0.0)
    """Believed time of the incumbent over time of the best variant."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of total kernel time that would be saved: share * (1 - 1 / gain)."""
    because: str
    """Why, one sentence for a person."""
    structures: tuple[Name, ...] = ()
    """Source structures to try first; empty means all."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier tries, oldest first; a refined hypothesis carries them."""
    world: str = ""
    """Digest of what it was believed of: the variant in production and the environment. In another
    world it is another belief, and may be tested again."""
    busy_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the time that a device computed at all while this was seen: what is saved is a share
    of that."""


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
    """Least share of total kernel time that pays for an experiment."""
    unknown_gain: float = Field(default=1.15, ge=1.0)
    """Gain believed without roofline or prior: launch parameters alone leave 0 to 14 %."""
    reach: float = Field(default=0.4, gt=0.0, le=1.0)
    """Part of the way to the roofline, in logarithms, that a search is believed to go."""
    launch_ns: int = Field(default=5_000, ge=0)
    """Part of every launch's time that no other source saves, and without which a kernel of a few
    microseconds looks far from its roofline: on CPUs the framework's, on GPUs what the shortest
    kernels take."""
    max_gain: float = Field(default=4.0, gt=1.0)
    """Gains above this are not believed before they are measured."""
    max_shapes: int = Field(default=4, ge=1)
    """Most shapes of one hypothesis; those with most kernel time."""
    max_attempts: int = Field(default=3, ge=1)
    """Most experiments on one hypothesis and its refinements."""
    discount: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What a failed attempt leaves of the believed gain, in logarithms."""
    horizon_s: float = Field(default=86_400.0, gt=0.0)
    """How long the present traffic is believed to last, seconds: what a win saves later does not
    count."""
    devices: int = Field(default=1, ge=1)
    """Devices that would run the variant; each saves its share."""
    experiment_s: float = Field(default=120.0, gt=0.0)
    """What a try is believed to cost before one was made, seconds of one device."""
    experiment_weight: float = Field(default=1.0, ge=0.0)
    """Seconds of serving that a second of experiment is worth; 0 where idle devices try."""


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
