"""How far a bound must keep from an estimate: at one look, and at every look. Scalars only; pure.

At one look it is Student's t. Where one looks again and stops when one likes what one sees, a t
bound is wrong in 25 % of cases; `anytime_quantile` is what keeps its promise then.
"""

from __future__ import annotations

import math
from functools import lru_cache


def anytime_quantile(confidence: float, *, units: int, dof: float, tune_at: int = 10) -> float:
    """Return how many standard errors from the mean a bound must keep to hold at every look.

    The t statistic's likelihood ratio, mixed over normally distributed effect sizes, is a test
    martingale for normal data of any variance (Lai; Perez-Ortiz and others), so it ever exceeds
    1 / alpha with a chance of at most alpha. The bound is where it does. With a known variance it
    is the normal mixture of Robbins. Infinite while too few units are in.

    Parameters
    ----------
    confidence
        Of the bound, one-sided.
    units
        Independent ones so far: processes, or blocks of one.
    dof
        Degrees of freedom of the standard error: units - 1 for one shape.
    tune_at
        Units at which the bound is about tightest; must not depend on what was seen.

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
