"""A hypothesis, its attempts, the shape costs it is made from, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from retuned.contract import Name, Record, Workload, digest_of


class Attempt(Record):
    """What an earlier experiment on the same hypothesis showed."""

    experiment: str
    reason: str
    detail: str = ""
    """One sentence, for example the best candidate and what it lost on."""
    seconds: float = Field(default=0.0, ge=0.0)
    """Device time of its candidates; 0 if not measured."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """How many candidates ended with each reason code."""
    hopeless: tuple[Name, ...] = ()
    """Structures without any working candidate."""
    lost: tuple[Workload, ...] = ()
    """Shapes at which every finalist was slower than the incumbent."""
    lost_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the incumbent's time that these shapes take."""


class Hypothesis(Record):
    """A kernel that may be made faster for the present workload."""

    id: str
    """Digest of its content; an equal hypothesis is not tested twice."""
    definition: Name
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Shapes to tune for, weighted by the present profile."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of kernel time these shapes take now."""
    expected_gain_ratio: float = Field(gt=0.0)
    """Expected time of the incumbent over time of the best variant."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of total kernel time that would be saved: share * (1 - 1 / gain)."""
    because: str
    """Why, one sentence."""
    structures: tuple[Name, ...] = ()
    """Source structures to try first; empty means all."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts, oldest first; a refined hypothesis carries them."""
    world: str = ""
    """Digest of the variant in production and the environment.

    If either changes, it is another hypothesis and may be tested again."""
    busy_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the time in which a device computed during the window; savings are shares of it."""
    whole_us: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Time of which `share` is a part, microseconds for each second, over all processes.

    0 where `share` is measured; of a tunable it is an estimate, see `share_in`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCost:
    """One shape of a known definition in the present window."""

    workload: Workload
    gpu_time_ns: int
    median_ns: int
    """Of one launch of the incumbent."""
    floor_ns: int = 0
    """Roofline: no kernel can be faster; 0 where unknown."""


class HypothesisSettings(Record):
    """How gains are estimated before a measurement, and when another attempt does not pay."""

    min_saving: float = Field(default=0.005, ge=0.0, le=1.0)
    """Smallest share of total kernel time that pays for an experiment."""
    unknown_gain: float = Field(default=1.15, ge=1.0)
    """Gain assumed without roofline or prior: launch parameters alone leave 0 to 14 %."""
    reach: float = Field(default=0.4, gt=0.0, le=1.0)
    """Part of the way to the roofline, in logarithms, that a search is expected to go."""
    launch_ns: int = Field(default=5_000, ge=0)
    """Part of every launch's time that no variant saves.

    Without it a kernel of a few microseconds looks far from its roofline. On CPUs it is the
    framework's time, on GPUs the time of the shortest kernels."""
    max_gain: float = Field(default=4.0, gt=1.0)
    """Greater gains are cut to this until they are measured."""
    max_shapes: int = Field(default=4, ge=1)
    """Most shapes of one hypothesis; those with most kernel time."""
    max_attempts: int = Field(default=3, ge=1)
    """Most experiments on one hypothesis and its refinements."""
    discount: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Part of the expected gain that a failed attempt leaves, in logarithms."""
    horizon_s: float = Field(default=86_400.0, gt=0.0)
    """How long the present traffic is assumed to last, seconds; later savings do not count."""
    devices: int = Field(default=1, ge=1)
    """Devices that would run the variant; each saves its share."""
    experiment_s: float = Field(default=120.0, gt=0.0)
    """Assumed cost of the first attempt, seconds of one device."""
    experiment_weight: float = Field(default=1.0, ge=0.0)
    """Seconds of serving that a second of experiment is worth; 0 if idle devices run experiments.
    """


def lengths(workload: Workload) -> str:
    """Return the lengths of a shape as text."""
    return "x".join(f"{name}={length}" for name, length in workload.axes.items()) or "its one shape"


def named(body: Mapping[str, object]) -> Hypothesis:
    """Give a hypothesis its id, from its subject and its attempts but not from its numbers.

    Two windows of one drift differ in every digit, but give one hypothesis.
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
