"""From findings of earlier experiments to priors. Pure: the same findings give the same priors.

Formula, for a finding ``i`` of experiment ``e`` with structure ``s`` and values ``v``::

    log ratio_i = level_e + effect_s + sum_v effect_v + extra_point + noise

fitted by backfitting; each effect is the weighted mean of what the others leave, times
``W / (W + 1)`` for its total weight ``W``: shrunken towards nothing known. Levels are not shrunken:
incumbents differ from experiment to experiment, and say nothing of the variants. A finding weighs
``0.5 ** (age / half life)``, and half of that where compiler or driver were others than now. What
another architecture showed is not used at all: `porting` translates it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from retuned.contract import Digest
from retuned.lab.generators.priors import (
    MOST_GENERATORS,
    MOST_POINTS,
    MOST_STRUCTURES,
    MOST_VALUES,
    GeneratorPrior,
    Outcomes,
    PointPrior,
    Priors,
    StructurePrior,
    ValuePrior,
)
from retuned.lab.generators.spaces import merit
from retuned.ports import Finding
from retuned.stages.experiment import Turn
from retuned.stages.hypothesis.refine import REFUSED, STARVED, WRONG

_ROUNDS = 6
_LIMIT = 3.0
_ADVANTAGE = 8.0
"""No generator's prior is further from the average than this."""
_T = TypeVar("_T")
_Key = tuple[str, tuple[tuple[str, int | str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSettings:
    """How quickly the past loses its weight."""

    half_life_days: float = 30.0
    """Age at which a finding weighs half."""
    changed_weight: float = 0.5
    """Weight where compiler or driver were others than now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One finding of an earlier experiment."""

    finding: Finding
    """What was found."""
    experiment: str
    """Id of its experiment."""
    environment: Digest
    """Where."""
    arch: str
    """Architecture of that environment; empty where it is not known."""
    age_days: float
    """How long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTurn:
    """One turn of an earlier experiment."""

    turn: Turn
    """Who was asked and what came of it."""
    age_days: float
    """How long ago."""


@dataclass(slots=True)
class _Row:
    """A finding as the fit reads it."""

    key: _Key
    experiment: str
    weight: float
    value: float | None
    """Log ratio; None where it was not timed."""
    reason: str


def learn_priors(
    past: Sequence[Past],
    *,
    family: str,
    language: str,
    environment: Digest,
    arch: str,
    turns: Sequence[PastTurn] = (),
    settings: PriorSettings | None = None,
) -> Priors:
    """Return what findings of one operator say about the next experiment on it.

    Parameters
    ----------
    past
        Findings on kernels of the operator, in any order; those of other languages and
        architectures are left out.
    family, language
        Operator and language.
    environment, arch
        Where the next experiment runs.
    turns
        Whose turns there were in those experiments.
    settings
        How quickly the past loses its weight.
    """
    settings = settings or PriorSettings()
    made = (
        _row(each, environment=environment, settings=settings)
        for each in past
        if _holds(each, language=language, environment=environment, arch=arch)
    )
    rows = [row for row in made if row is not None]
    fit = _Fit([row for row in rows if row.value is not None])
    points = _points(rows, fit)
    return Priors(
        family=family,
        language=language,
        arch=arch,
        findings=len(rows),
        experiments=len({row.experiment for row in rows}),
        structures=_structures(rows, fit, points),
        points=tuple(points[:MOST_POINTS]),
        generators=_generators(turns, settings),
    )


def _holds(each: Past, *, language: str, environment: Digest, arch: str) -> bool:
    here = each.environment == environment or (bool(arch) and each.arch == arch)
    return here and str(each.finding.solution.language) == language


def _row(each: Past, *, environment: Digest, settings: PriorSettings) -> _Row | None:
    """Return a finding with its weight; None for one without information on the candidate."""
    reason = str(each.finding.verdict.reason)
    ratio = merit(each.finding)
    if ratio is None and reason not in WRONG | REFUSED | STARVED:
        return None
    solution = each.finding.solution
    weight = 0.5 ** (max(each.age_days, 0.0) / settings.half_life_days)
    if each.environment != environment:
        weight *= settings.changed_weight
    value = None if ratio is None or reason in WRONG else _clamp(math.log(ratio))
    return _Row(
        key=(solution.structure, tuple(sorted(solution.params.items()))),
        experiment=each.experiment,
        weight=weight,
        value=value,
        reason=reason,
    )


class _Fit:
    """Levels of experiments and shrunken effects of structures, values and points."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.level: dict[str, float] = {}
        self.structure: dict[str, float] = {}
        self.value: dict[tuple[str, str, int | str], float] = {}
        names = sorted({name for row in rows for name, _ in row.key[1]})
        for _ in range(_ROUNDS if rows else 0):
            self.level = _means(rows, lambda r: r.experiment, lambda r: self.of(r.key), shrink=0.0)
            self.structure = _means(rows, lambda r: r.key[0], self._beside_structure, shrink=1.0)
            for name in names:
                self._fit_values(rows, name)
        self.point: dict[_Key, float] = _means(
            rows, lambda r: r.key, lambda r: self.level[r.experiment] + self.of(r.key), shrink=1.0
        )

    def of(self, key: _Key) -> float:
        """Return the sum of the effects of a point."""
        return self.structure.get(key[0], 0.0) + self._values_of(key)

    def _values_of(self, key: _Key, *, but: str = "") -> float:
        structure, params = key
        return sum(self.value.get((structure, n, v), 0.0) for n, v in params if n != but)

    def _beside_structure(self, row: _Row) -> float:
        return self.level[row.experiment] + self._values_of(row.key)

    def _fit_values(self, rows: Sequence[_Row], name: str) -> None:
        own = [row for row in rows if any(n == name for n, _ in row.key[1])]
        found = _means(
            own,
            lambda r: (r.key[0], name, dict(r.key[1])[name]),
            lambda r: (
                self.level[r.experiment]
                + self.structure.get(r.key[0], 0.0)
                + self._values_of(r.key, but=name)
            ),
            shrink=1.0,
        )
        self.value.update(found)


def _means(
    rows: Iterable[_Row],
    group: Callable[[_Row], _T],
    others: Callable[[_Row], float],
    *,
    shrink: float,
) -> dict[_T, float]:
    """Weighted mean per group of what the others leave, shrunken by so much weight of nothing."""
    sums: dict[_T, float] = defaultdict(float)
    weights: dict[_T, float] = defaultdict(float)
    for row in rows:
        assert row.value is not None, "only what was timed is fitted"
        key = group(row)
        sums[key] += row.weight * (row.value - others(row))
        weights[key] += row.weight
    return {key: sums[key] / (weights[key] + shrink) for key in sums if weights[key] > 0.0}


def _points(rows: Sequence[_Row], fit: _Fit) -> list[PointPrior]:
    """Return the points that were timed, best expected first."""
    tried: dict[_Key, int] = defaultdict(int)
    for row in rows:
        tried[row.key] += 1
    found = [
        PointPrior(
            structure=key[0],
            params=dict(key[1]),
            extra=_clamp(extra),
            expected=_clamp(fit.of(key) + extra),
            tried=tried[key],
        )
        for key, extra in sorted(fit.point.items(), key=lambda item: str(item[0]))
    ]
    return sorted(found, key=lambda each: -each.expected)


def _structures(
    rows: Sequence[_Row], fit: _Fit, points: Sequence[PointPrior]
) -> tuple[StructurePrior, ...]:
    found = []
    for name in sorted({row.key[0] for row in rows}):
        own = [row for row in rows if row.key[0] == name]
        timed = [(row.weight, row.value) for row in own if row.value is not None]
        weight = sum(w for w, _ in timed)
        best = [each.expected for each in points if each.structure == name]
        found.append(
            StructurePrior(
                structure=name,
                gain=_clamp(sum(w * v for w, v in timed) / (weight + 1.0)),
                best=_clamp(max(best, default=-_LIMIT)),
                effect=_clamp(fit.structure.get(name, 0.0)),
                outcomes=_outcomes(own),
                values=_values(name, own, fit),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.best)[:MOST_STRUCTURES])


def _values(structure: str, rows: Sequence[_Row], fit: _Fit) -> tuple[ValuePrior, ...]:
    by_value: dict[tuple[str, int | str], list[_Row]] = defaultdict(list)
    for row in rows:
        for pair in row.key[1]:
            by_value[pair].append(row)
    most = sorted(by_value, key=lambda pair: (-len(by_value[pair]), str(pair)))[:MOST_VALUES]
    return tuple(
        ValuePrior(
            name=name,
            value=value,
            effect=_clamp(fit.value.get((structure, name, value), 0.0)),
            outcomes=_outcomes(by_value[name, value]),
        )
        for name, value in sorted(most, key=lambda pair: (pair[0], str(type(pair[1])), pair[1]))
    )


def _outcomes(rows: Sequence[_Row]) -> Outcomes:
    weight = sum(row.weight for row in rows)
    share = {
        name: sum(row.weight for row in rows if row.reason in codes) / (weight + 1.0)
        for name, codes in (("unbuilt", REFUSED), ("starved", STARVED), ("wrong", WRONG))
    }
    return Outcomes(weight=min(weight, 1e6), tried=len(rows), **share)


def _generators(turns: Sequence[PastTurn], settings: PriorSettings) -> tuple[GeneratorPrior, ...]:
    """Compare each generator's gain per second with that of all generators."""
    gain: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for each in turns:
        weight = 0.5 ** (max(each.age_days, 0.0) / settings.half_life_days)
        name = each.turn.generator
        gain[name] += weight * math.log(each.turn.gain_ratio)
        seconds[name] += weight * each.turn.seconds
        count[name] += weight
    all_s, all_gain = sum(seconds.values()), sum(gain.values())
    if all_s <= 0.0 or all_gain <= 0.0:
        return ()
    rate, turn_s = all_gain / all_s, all_s / sum(count.values())
    found = [
        GeneratorPrior(
            generator=name,
            # one turn of the average is added to each: few turns leave a generator near the average
            advantage=_within((gain[name] + rate * turn_s) / (seconds[name] + turn_s) / rate),
            turns=min(count[name], 1e6),
        )
        for name in sorted(count)
    ]
    return tuple(sorted(found, key=lambda each: -each.advantage)[:MOST_GENERATORS])


def _within(advantage: float) -> float:
    return max(1.0 / _ADVANTAGE, min(_ADVANTAGE, advantage))


def _clamp(value: float) -> float:
    return max(-_LIMIT, min(_LIMIT, value))
