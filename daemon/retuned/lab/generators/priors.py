"""What earlier experiments learned, as priors: the order of trying, never a verdict.

One record per operator, language and architecture. Speed is a sum of effects (structure, value of
each parameter) and of what single points showed beyond it; everything is shrunken towards nothing
known, so that one lucky measurement moves little. Whether a variant can be built at all is counted
apart from how fast it is.

`prior_fit` makes a prior from findings. Its readers are the search (first guesses, and the mean of
its surrogate), the recipes (order) and the portfolio's bandit (the next generator).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field

from retuned.contract import Record

FAILED = -0.7
"""Log ratio of a candidate that was never timed: its neighbours are likely as bad."""
MOST_STRUCTURES = 24
"""Most structures of a record."""
MOST_VALUES = 64
"""Most values of one structure."""
MOST_POINTS = 192
"""Most points of a record."""
MOST_GENERATORS = 16
"""Most generators of a record."""
_FAR = 3.0
"""No effect of a prior is beyond this, in logarithms: a factor of twenty."""
_EVIDENCE = 2.0
"""Least weight of findings from which a structure may be put off."""

Effect = float
Params = Mapping[str, int | str]


class Outcomes(Record):
    """How often it was tried and what kept it from being timed; newer tries weigh more."""

    weight: float = Field(default=0.0, ge=0.0, le=1e6)
    """Findings, each with its weight: 1 for one of today in this environment."""
    tried: int = Field(default=0, ge=0)
    """Findings, each counted once."""
    unbuilt: float = Field(default=0.0, ge=0.0, le=1.0)
    """Shrunken share that could not be built."""
    starved: float = Field(default=0.0, ge=0.0, le=1.0)
    """Shrunken share that wanted more registers, memory or workspace than there is."""
    wrong: float = Field(default=0.0, ge=0.0, le=1.0)
    """Shrunken share that computed something else."""

    @property
    def failed(self) -> float:
        """Share that was never timed."""
        return min(1.0, self.unbuilt + self.starved + self.wrong)


class ValuePrior(Record):
    """What one value of one parameter did within its structure."""

    name: str = Field(max_length=120)
    """Parameter."""
    value: int | str
    """Its value."""
    effect: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Shrunken mean effect on the log speedup, beside all other values."""
    outcomes: Outcomes
    """How often it was tried."""


class StructurePrior(Record):
    """What one source structure did."""

    structure: str = Field(max_length=200)
    """Structure."""
    gain: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Shrunken mean log speedup against the incumbents it was compared with."""
    best: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Highest expected log speedup of its points that were tried, shrunken."""
    effect: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Shrunken effect on the log speedup, experiments' own levels taken out."""
    outcomes: Outcomes
    """How often it was tried."""
    values: tuple[ValuePrior, ...] = Field(default=(), max_length=MOST_VALUES)
    """Of its parameters, those tried most."""


class PointPrior(Record):
    """What one point showed beyond the sum of its effects."""

    structure: str = Field(max_length=200)
    """Structure."""
    params: dict[str, int | str]
    """Parameters."""
    extra: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Shrunken rest of the log speedup."""
    expected: float = Field(ge=-_FAR, le=_FAR, allow_inf_nan=False)
    """Expected log speedup, comparable among the points of this record only."""
    tried: int = Field(ge=0)
    """Findings."""


class GeneratorPrior(Record):
    """How much more, or less, a generator brought per second than all of them together."""

    generator: str = Field(max_length=120)
    """Who."""
    advantage: float = Field(gt=0.0, le=64.0, allow_inf_nan=False)
    """Its gain per second relative to all generators, shrunken towards 1."""
    turns: float = Field(ge=0.0, le=1e6)
    """Turns, older ones less."""


class Priors(Record):
    """Priors of an operator's kernels, before anything is tried here."""

    family: str = Field(default="", max_length=200)
    """Operator type."""
    language: str = Field(default="", max_length=60)
    """Language of the variants."""
    arch: str = Field(default="", max_length=120)
    """Architecture that it holds for."""
    findings: int = Field(default=0, ge=0)
    """Findings that it rests on."""
    experiments: int = Field(default=0, ge=0)
    """Experiments that they come from."""
    structures: tuple[StructurePrior, ...] = Field(default=(), max_length=MOST_STRUCTURES)
    """Best expected first."""
    points: tuple[PointPrior, ...] = Field(default=(), max_length=MOST_POINTS)
    """Best expected first."""
    generators: tuple[GeneratorPrior, ...] = Field(default=(), max_length=MOST_GENERATORS)
    """Best first."""

    @property
    def known(self) -> bool:
        """Whether the priors have an estimate of speed."""
        return bool(self.structures)

    def advantages(self) -> dict[str, float]:
        """Return the advantage of each generator that is known."""
        return {each.generator: each.advantage for each in self.generators}


class Expectation:
    """A prior's answers about points, looked up rather than searched.

    Parameters
    ----------
    priors
        The priors.
    """

    def __init__(self, priors: Priors) -> None:
        self._structures = {each.structure: each for each in priors.structures}
        self._values = {
            (each.structure, value.name, value.value): value
            for each in priors.structures
            for value in each.values
        }
        self._extra = {(each.structure, _key(each.params)): each.extra for each in priors.points}
        self._best = max((each.best for each in priors.structures), default=0.0)

    def mean(self, structure: str, params: Params) -> Effect:
        """Return the expected log speedup of a point, failures counted as `FAILED`.

        Only differences between points mean something; what is not known is as good as the average.
        """
        own = self._structures.get(structure)
        if own is None:
            return 0.0
        values = [
            found
            for name, value in params.items()
            if (found := self._values.get((structure, name, value))) is not None
        ]
        speed = own.effect + sum(value.effect for value in values)
        speed += self._extra.get((structure, _key(params)), 0.0)
        speed = max(-_FAR, min(_FAR, speed))
        failed = max([own.outcomes.failed, *(value.outcomes.failed for value in values)])
        return (1.0 - failed) * speed + failed * min(speed, FAILED)

    def knows(self, structure: str) -> bool:
        """Whether the structure was tried before."""
        return structure in self._structures

    def poor(self, structure: str, *, ratio: float) -> bool:
        """Whether enough tries show that no variant of a structure is near the best of others.

        Parameters
        ----------
        structure
            Structure.
        ratio
            How near, as a ratio of speeds.
        """
        own = self._structures.get(structure)
        if own is None or own.outcomes.weight < _EVIDENCE:
            return False
        return own.best < self._best + math.log(ratio)


def best_first(priors: Priors | None, points: Sequence[tuple[str, Params]]) -> list[int]:
    """Return the order in which points are worth a try: places in `points`, ties as they came.

    Examples
    --------
    >>> best_first(None, [("a", {}), ("b", {})])
    [0, 1]
    """
    places = list(range(len(points)))
    if priors is None or not priors.known:
        return places
    expectation = Expectation(priors)
    return sorted(places, key=lambda place: -expectation.mean(*points[place]))


def _key(params: Params) -> tuple[tuple[str, int | str], ...]:
    return tuple(sorted(params.items()))
