"""Statistics of paired, interleaved times: is a candidate faster, and how certain is it? Pure.

Pairs inside a block share clock, temperature and other load, so each block counts once, by its
median log ratio ln(t_incumbent / t_candidate). Blocks inside a process share memory placement and
other load. Where several processes were timed, each counts once, by the mean of its blocks, over
all shapes together. Sequential measurement of one variant after the other has 46 % false positives
under slow drift. Pairs on block medians have the nominal rate if blocks are independent; means of
processes have it also if they are not.

Bounds exist for a single look and for every look. Scalars only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from retuned.stages.verdict import Interval


def anytime_quantile(confidence: float, *, units: int, dof: float, tune_at: int = 10) -> float:
    """Return the distance in standard errors of a bound that holds at every look.

    Parameters
    ----------
    confidence
        Of the bound, one-sided.
    units
        Independent ones so far: processes, or blocks of one.
    dof
        Degrees of freedom of the standard error: units - 1 for one shape.
    tune_at
        Units at which the bound is about tightest; must not depend on the data.

    Examples
    --------
    >>> round(anytime_quantile(0.99, units=12, dof=11), 2), round(t_quantile(0.99, 11), 2)
    (4.3, 2.72)
    """
    if units < 2 or dof <= 0.0:
        return math.inf
    alpha = 2.0 * (1.0 - confidence)
    scale = _scale(alpha, units=units, tune_at=tune_at)
    log_ratio = 2.0 / (dof + 1.0) * (0.5 * math.log(scale) - math.log(alpha))
    if log_ratio >= math.log(scale):
        return math.inf
    ratio = math.exp(log_ratio)
    return math.sqrt(dof * (ratio - 1.0) / (1.0 - ratio / scale))


def anytime_p_value(
    statistic: float, *, units: int, dof: float, alpha: float, tune_at: int = 10
) -> float:
    """One-sided p of "the mean is not above", given its distance in standard errors.

    It is `alpha` where the distance is `anytime_quantile` of confidence 1 - `alpha`: both come from
    one test, tuned for this `alpha`.
    """
    if statistic <= 0.0 or units < 2 or dof <= 0.0:
        return 1.0
    scale = _scale(2.0 * alpha, units=units, tune_at=tune_at)
    squared = statistic * statistic
    grown = math.log1p(squared / dof) - math.log1p(squared / (dof * scale))
    log_evidence = 0.5 * (dof + 1.0) * grown - 0.5 * math.log(scale)
    return min(1.0, 0.5 * math.exp(-log_evidence))


def _scale(alpha: float, *, units: int, tune_at: int) -> float:
    """One plus units times the variance of the mixed effect sizes (Howard and others)."""
    log = -2.0 * math.log(alpha)
    return 1.0 + units * (log + math.log(log + 1.0)) / tune_at


@lru_cache(maxsize=512)
def t_quantile(probability: float, dof: float) -> float:
    """Quantile of Student's t, by bisection on its distribution."""
    if not 0.0 < probability < 1.0 or dof <= 0.0:
        raise ValueError("probability must lie in (0, 1) and degrees of freedom above 0")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    low, high = 0.0, 1.0
    while t_cdf(high, dof) < probability:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_cdf(middle, dof) < probability else (low, middle)
    return (low + high) / 2.0


def t_cdf(value: float, dof: float) -> float:
    """Distribution of Student's t through the incomplete beta function."""
    tail = 0.5 * _incomplete_beta(dof / 2.0, 0.5, dof / (dof + value * value))
    return 1.0 - tail if value >= 0.0 else tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta, by its continued fraction (Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for step in range(1, 300):
        for term in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return result


Floats = npt.NDArray[np.float64]
_MOST_ALIKE = 0.9
"""Upper bound of the estimated correlation of neighbouring blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSamples:
    """All times at one shape, for one comparison."""

    weight: float
    """Launches per second in the profile."""
    incumbent_us: Floats
    candidate_us: Floats
    block: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64] | None = None
    """Process of each block, in order of the blocks.

    None if one process was used, or if it is unknown: then blocks are the units.
    """

    def ratios(self) -> Floats:
        """ln(incumbent / candidate) of each unit: means over processes, or medians of blocks."""
        blocks = _medians(np.log(self.incumbent_us / self.candidate_us), self.block)
        if self.process is None:
            return blocks
        _, place = np.unique(self.process, return_inverse=True)
        means: Floats = np.bincount(place, weights=blocks) / np.bincount(place)
        return means


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A log ratio with its uncertainty."""

    mean: float
    """Natural logarithm of incumbent over candidate; above 0 the candidate is faster."""
    error: float
    dof: float

    def interval(self, confidence: float) -> Interval:
        reach = t_quantile(confidence, self.dof) * self.error
        return Interval(
            lower=_exp(self.mean - reach),
            point=_exp(self.mean),
            upper=_exp(self.mean + reach),
            confidence=confidence,
        )

    def anytime_interval(self, confidence: float, *, units: int, tune_at: int = 10) -> Interval:
        """Two one-sided bounds of this confidence that hold at every look.

        `units` is the fewest processes, or blocks of one process, of any shape so far.
        """
        factor = anytime_quantile(confidence, units=units, dof=self.dof, tune_at=tune_at)
        reach = factor * self.error if math.isfinite(factor) else math.inf
        return Interval(
            lower=_exp(self.mean - reach),
            point=_exp(self.mean),
            upper=_exp(self.mean + reach),
            confidence=confidence,
        )

    def anytime_p_value(
        self, threshold: float = 0.0, *, units: int, alpha: float, tune_at: int = 10
    ) -> float:
        """One-sided p of "the log ratio is at most `threshold`", valid at every look.

        It is at most `alpha` exactly if the lower bound of confidence 1 - `alpha` is above the
        threshold: both come from one test.
        """
        ratio = (self.mean - threshold) / max(self.error, 1e-12)
        return anytime_p_value(ratio, units=units, dof=self.dof, alpha=alpha, tune_at=tune_at)


def estimate(samples: ShapeSamples) -> Estimate | None:
    """Estimate one shape; None below two units, because the error is then unknown."""
    return _estimate(samples.ratios())


def _estimate(ratios: Floats) -> Estimate | None:
    if len(ratios) < 2:
        return None
    # A clock's step or equal medians must not pretend certainty.
    error = max(float(ratios.std(ddof=1)) / math.sqrt(len(ratios)), 1e-6)
    return Estimate(mean=float(ratios.mean()), error=error, dof=len(ratios) - 1)


def combine(shapes: Sequence[ShapeSamples]) -> Estimate | None:
    """Production-weighted speedup: sum of w * t_incumbent over sum of w * t_candidate, as a log.

    If the same processes timed all shapes, each process gives one number over all shapes. Otherwise
    the delta method combines the shapes' estimates. Degrees of freedom are by Welch and
    Satterthwaite. A geometric mean is not used, because one cheap shape driven to zero would win
    it. None if any shape lacks units.
    """
    parts = [estimate(shape) for shape in shapes]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    cost = [shape.weight * float(np.median(shape.incumbent_us)) for shape in shapes]
    if sum(cost) <= 0.0:
        return None
    before = [each / sum(cost) for each in cost]
    left = [share * math.exp(-part.mean) for share, part in zip(before, known, strict=True)]
    after = [each / sum(left) for each in left]
    together = _together(shapes, before)
    whole = None if together is None else _estimate(together)
    terms = [
        ((share * part.error) ** 2, part.dof) for share, part in zip(after, known, strict=True)
    ]
    if whole is not None:
        terms = [(whole.error**2, whole.dof)]
    # Shares of the time are measured as well, and matter where speedups differ between shapes.
    terms += [
        (((new - old) * _cost_error(shape)) ** 2, part.dof)
        for new, old, shape, part in zip(after, before, shapes, known, strict=True)
    ]
    variance = sum(term for term, _ in terms)
    spread = sum(term**2 / dof for term, dof in terms)
    dof = variance**2 / spread if spread > 0.0 else min(part.dof for part in known)
    mean = whole.mean if whole is not None else -math.log(sum(left))
    return Estimate(mean=mean, error=math.sqrt(variance), dof=dof)


def _together(shapes: Sequence[ShapeSamples], before: Sequence[float]) -> Floats | None:
    """Return each process's log ratio over all shapes; None where they were not timed together.

    `before` are the shapes' shares of the incumbent's time. Errors of shapes in one process are
    correlated, which independent estimates would ignore.
    """
    seen = [shape.process for shape in shapes]
    known = [np.unique(each) for each in seen if each is not None]
    if len(known) < len(seen) or any(not np.array_equal(each, known[0]) for each in known):
        return None
    ratios = np.stack([shape.ratios() for shape in shapes])
    together: Floats = -np.log(np.asarray(before) @ np.exp(-ratios))
    return together


def _cost_error(shape: ShapeSamples) -> float:
    """Relative standard error of the incumbent's time, over blocks.

    Pairs cancel the clock's drift; times of one side do not. Neighbouring blocks are therefore
    correlated, and their first-order correlation reduces the effective number of blocks.
    """
    medians = _medians(np.log(shape.incumbent_us), shape.block)
    count = len(medians)
    apart = medians - medians.mean()
    total = float(apart @ apart)
    if total <= 0.0:
        return 0.0
    # Estimated from few blocks it comes out too small, by about (1 + 4 r) / n; and because it is
    # uncertain, the upper end of what these blocks allow is taken.
    found = float(apart[1:] @ apart[:-1]) / total
    likely = (found * count + 1.0) / max(count - 4.0, 1.0)
    alike = min(max(likely + 2.0 / math.sqrt(count), 0.0), _MOST_ALIKE)
    return math.sqrt(total / (count - 1) / count * (1.0 + alike) / (1.0 - alike))


def _medians(values: Floats, block: npt.NDArray[np.int64]) -> Floats:
    """Median of each block, in order; vectorized if all blocks are equally long."""
    names, counts = np.unique(block, return_counts=True)
    if len(names) and (counts == counts[0]).all() and (np.diff(block) >= 0).all():
        rows: Floats = np.median(values.reshape(len(names), -1), axis=1)
        return rows
    return np.array([np.median(values[block == name]) for name in names])


def bootstrap_saving(
    shapes: Sequence[ShapeSamples], *, confidence: float, seed: int, rounds: int = 2000
) -> tuple[float, float, float]:
    """Bound the weighted saving, microseconds per second: lower, point, upper.

    S = sum over shapes of w * (t_incumbent - t_candidate).
    Bootstrap over processes where the same ones timed all shapes, else over each shape's blocks. A
    percentile interval over few units is too narrow (10 % instead of 5 % at ten blocks), so
    deviations are widened by the t quantile over the normal one and by sqrt(n / (n - 1)).
    """
    generator = np.random.default_rng(seed)
    point = 0.0
    draws = np.zeros(rounds)
    shared: npt.NDArray[np.int64] | None = None
    if _together(shapes, [1.0 / len(shapes)] * len(shapes)) is not None:
        count = len(shapes[0].ratios())
        shared = generator.integers(0, count, size=(rounds, count))
    for shape in shapes:
        ratios = shape.ratios()
        count = len(ratios)
        if count < 2:
            raise ValueError("a bootstrap needs at least two units per shape")
        base = shape.weight * float(np.median(shape.incumbent_us))
        centre = base * (1.0 - math.exp(-float(ratios.mean())))
        drawn = generator.integers(0, count, size=(rounds, count)) if shared is None else shared
        picks = ratios[drawn].mean(axis=1)
        wide = math.sqrt(count / (count - 1))
        wide *= t_quantile(confidence, count - 1) / NormalDist().inv_cdf(confidence)
        draws += centre + wide * (base * (1.0 - np.exp(-picks)) - centre)
        point += centre
    lower, upper = np.quantile(draws, [1.0 - confidence, confidence])
    return min(float(lower), point), point, max(float(upper), point)


def confidence_sequence(
    ratios: Sequence[float], *, confidence: float, tune_at: int = 10
) -> tuple[float, float]:
    """Anytime-valid bounds on the mean of block log ratios: they hold at every look.

    See `anytime_quantile`. They are infinite below two blocks, and while no value can be excluded.
    A t-test with repeated looks has 25 % false wins; this has its nominal rate.
    """
    count = len(ratios)
    if count < 2:
        return -math.inf, math.inf
    values = np.asarray(ratios, dtype=np.float64)
    error = max(float(values.std(ddof=1)) / math.sqrt(count), 1e-6)
    reach = error * anytime_quantile(confidence, units=count, dof=count - 1, tune_at=tune_at)
    centre = float(values.mean())
    return centre - reach, centre + reach


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p-values, in the given order: compare each with the family's alpha.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return tuple(adjusted)


def noise_floor(clones: Sequence[ShapeSamples]) -> float:
    """Largest speedup that byte-identical clones showed: per shape over all blocks, and weighted.

    It is at least 1; a candidate must beat it. It is infinite without samples, so that no candidate
    passes.
    """
    estimates = [estimate(shape) for shape in clones]
    if not estimates or any(part is None for part in estimates):
        return math.inf
    weighted = combine(clones)
    shares = [shape.weight * float(np.median(shape.incumbent_us)) for shape in clones]
    total = sum(shares)
    # Every shape's deviation counts by its share of the time: a noisy shape without launches is
    # not a floor.
    apart = sum(
        share / total * abs(part.mean)
        for share, part in zip(shares, estimates, strict=True)
        if part is not None
    ) if total > 0.0 else math.inf  # fmt: skip
    return _exp(max(apart, abs(weighted.mean) if weighted else math.inf))


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
