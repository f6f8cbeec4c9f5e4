"""Is it faster, and how sure are we? Pure functions over paired, interleaved times.

The unit is the block: pairs inside a block share clock, temperature and neighbours, so each block
counts once, by its median log ratio ln(t_incumbent / t_candidate). Sequential measurement of one
variant after the other has 46 % false positives under slow drift; pairs on block medians have the
nominal rate.
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

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSamples:
    """Everything timed at one shape, for one comparison."""

    weight: float
    """Launches per second in the profile."""
    incumbent_us: Floats
    """Time per launch of the incumbent, one per pair."""
    candidate_us: Floats
    """Time per launch of the candidate, one per pair."""
    block: npt.NDArray[np.int64]
    """Which block each pair belongs to."""

    def block_ratios(self) -> Floats:
        """Median ln(incumbent / candidate) of each block, in order of the blocks."""
        logs = np.log(self.incumbent_us / self.candidate_us)
        return np.array([np.median(logs[self.block == block]) for block in np.unique(self.block)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A log ratio with its uncertainty."""

    mean: float
    """Natural logarithm of incumbent over candidate; above 0 the candidate is faster."""
    error: float
    """Standard error of the mean."""
    dof: float
    """Degrees of freedom of that error."""

    def interval(self, confidence: float) -> Interval:
        """Two one-sided bounds, each of this confidence."""
        reach = t_quantile(confidence, self.dof) * self.error
        return Interval(
            lower=_exp(self.mean - reach),
            point=_exp(self.mean),
            upper=_exp(self.mean + reach),
            confidence=confidence,
        )

    def p_value(self, threshold: float = 0.0) -> float:
        """One-sided p of "the log ratio is at most `threshold`"."""
        if self.error <= 0.0:
            return 0.0 if self.mean > threshold else 1.0
        return 1.0 - t_cdf((self.mean - threshold) / self.error, self.dof)


def estimate(samples: ShapeSamples) -> Estimate | None:
    """Estimate one shape; None below two blocks, where no error is known."""
    ratios = samples.block_ratios()
    if len(ratios) < 2:
        return None
    # A clock's step or equal medians must not pretend certainty.
    error = max(float(ratios.std(ddof=1)) / math.sqrt(len(ratios)), 1e-6)
    return Estimate(mean=float(ratios.mean()), error=error, dof=len(ratios) - 1)


def combine(shapes: Sequence[ShapeSamples]) -> Estimate | None:
    """Production-weighted speedup: sum of w * t_incumbent over sum of w * t_candidate, as a log.

    Delta method over the shapes' block estimates; degrees of freedom by Welch and Satterthwaite.
    Never a geometric mean, which one cheap shape driven to zero would win. None where any shape
    lacks blocks.
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
    terms = [
        ((share * part.error) ** 2, part.dof) for share, part in zip(after, known, strict=True)
    ]
    # Shares of the time are measured as well, and matter where speedups differ between shapes.
    terms += [
        (((new - old) * _cost_error(shape)) ** 2, part.dof)
        for new, old, shape, part in zip(after, before, shapes, known, strict=True)
    ]
    variance = sum(term for term, _ in terms)
    spread = sum(term**2 / dof for term, dof in terms)
    dof = variance**2 / spread if spread > 0.0 else min(part.dof for part in known)
    return Estimate(mean=-math.log(sum(left)), error=math.sqrt(variance), dof=dof)


def _cost_error(shape: ShapeSamples) -> float:
    """Relative standard error of the incumbent's time, over blocks."""
    logs = np.log(shape.incumbent_us)
    medians = [np.median(logs[shape.block == block]) for block in np.unique(shape.block)]
    return float(np.std(medians, ddof=1)) / math.sqrt(len(medians))


def bootstrap_saving(
    shapes: Sequence[ShapeSamples], *, confidence: float, seed: int, rounds: int = 2000
) -> tuple[float, float, float]:
    """Bound the weighted saving, microseconds per second: lower, point, upper.

    S = sum over shapes of w * (t_incumbent - t_candidate).
    Stratified bootstrap over blocks within each shape. A percentile interval over few blocks is too
    narrow (10 % instead of 5 % at ten blocks), so deviations are widened by the t quantile over the
    normal one and by sqrt(n / (n - 1)).
    """
    generator = np.random.default_rng(seed)
    point = 0.0
    draws = np.zeros(rounds)
    for shape in shapes:
        ratios = shape.block_ratios()
        count = len(ratios)
        if count < 2:
            raise ValueError("a bootstrap needs at least two blocks per shape")
        base = shape.weight * float(np.median(shape.incumbent_us))
        centre = base * (1.0 - math.exp(-float(ratios.mean())))
        picks = ratios[generator.integers(0, count, size=(rounds, count))].mean(axis=1)
        wide = math.sqrt(count / (count - 1))
        wide *= t_quantile(confidence, count - 1) / NormalDist().inv_cdf(confidence)
        draws += centre + wide * (base * (1.0 - np.exp(-picks)) - centre)
        point += centre
    lower, upper = np.quantile(draws, [1.0 - confidence, confidence])
    return min(float(lower), point), point, max(float(upper), point)


def confidence_sequence(
    ratios: Sequence[float], *, confidence: float, tune_at: int = 10
) -> tuple[float, float]:
    """Anytime-valid bounds on the mean of block log ratios: valid however often one looks.

    Normal-mixture boundary (Robbins), with the running standard deviation widened by the t
    quantile's excess over the normal one, because it is estimated. `tune_at` is the number of
    blocks at which it is tightest. Infinite below two blocks. A t-test that peeks has 25 % false
    wins; this has its nominal rate from about ten blocks on.
    """
    count = len(ratios)
    if count < 2:
        return -math.inf, math.inf
    values = np.asarray(ratios, dtype=np.float64)
    alpha = 2.0 * (1.0 - confidence)
    sigma = max(float(values.std(ddof=1)), 1e-6)
    sigma *= t_quantile(confidence, count - 1) / NormalDist().inv_cdf(confidence)
    rho = _mixture_precision(alpha, tune_at)
    reach = sigma * math.sqrt((count + rho) * math.log((count + rho) / (rho * alpha**2))) / count
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

    At least 1; a candidate must beat it. Infinite without samples, so that nothing passes.
    """
    estimates = [estimate(shape) for shape in clones]
    if not estimates or any(part is None for part in estimates):
        return math.inf
    weighted = combine(clones)
    shares = [shape.weight * float(np.median(shape.incumbent_us)) for shape in clones]
    total = sum(shares)
    # Every shape's deviation counts by its share of the time: a noisy shape nobody runs is no
    # floor.
    apart = sum(
        share / total * abs(part.mean)
        for share, part in zip(shares, estimates, strict=True)
        if part is not None
    ) if total > 0.0 else math.inf  # fmt: skip
    return _exp(max(apart, abs(weighted.mean) if weighted else math.inf))


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


def _mixture_precision(alpha: float, tune_at: int) -> float:
    """Mixture parameter that makes the boundary tightest at `tune_at` blocks (Howard et al.)."""
    log = -2.0 * math.log(alpha)
    return tune_at / (log + math.log(log + 1.0))


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
