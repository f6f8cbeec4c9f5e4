"""Run length of a CUSUM, for the choice of its parameters, and what clean checks prove. Pure.

The average number of values until the alarm is that of a Markov chain (Brook and Evans 1972). The
sum's range is divided into steps; the chance to move from one to another is that of the value
between them. The runtime's rules are `retuned.runtime.shadow.cusum.DECAY` and `PACE`; tests hold
them to more than 10^6 checks between false alarms and to a doubling found within 200.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from retuned.runtime.shadow.cusum import CusumRule

_STATES = 480


def run_length(
    rule: CusumRule, *, shift: float = 0.0, spread: float = 1.0, states: int = _STATES
) -> float:
    """Return the average number of values until the alarm, warm-up not counted.

    Parameters
    ----------
    rule
        Parameters of the sum.
    shift
        True mean of the values, normally distributed, in units of the spread that was learned.
    spread
        Their true standard deviation in the same units.
    states
        Steps of the range; more are more exact.

    Examples
    --------
    >>> wide = CusumRule(slack=0.5, threshold=4.0, clip=99.0, warmup=0, least_spread=1.0)
    >>> round(run_length(wide)), round(run_length(wide, shift=1.0), 1)  # tables: 336 and 8.38
    (335, 8.4)

    Raises
    ------
    ValueError
        If the spread is not positive or there are fewer than two states.
    """
    if spread <= 0.0 or states < 2:
        raise ValueError(
            f"spread must be positive and states at least 2, got {spread} and {states}"
        )

    def below(value: float) -> float:
        if value < -rule.clip:
            return 0.0
        if value >= rule.clip:
            return 1.0
        return 0.5 * math.erfc((shift - value) / (spread * math.sqrt(2.0)))

    return _chain(rule, below, states=states)


def run_length_of_signs(rule: CusumRule, *, share: float, states: int = _STATES) -> float:
    """Return the same for values of +1, in this share of cases, and -1.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share must be between 0 and 1, got {share}")

    def below(value: float) -> float:
        if value < -1.0:
            return 0.0
        return 1.0 - share if value < 1.0 else 1.0

    return _chain(rule, below, states=states)


def _chain(rule: CusumRule, below: Callable[[float], float], *, states: int) -> float:
    """Solve for the mean time to leave the range of the sum, from 0."""
    width = 2.0 * rule.threshold / (2 * states - 1)
    # from state i to j the value is between (j - i -+ 0.5) * width + slack
    edges = np.array(
        [below((n - 0.5) * width + rule.slack) for n in range(-states, states + 2)],
        dtype=np.float64,
    )
    matrix: NDArray[np.float64] = np.empty((states, states))
    for i in range(states):
        first = states - i  # edge below state 0 seen from i
        cumulated = edges[first + 1 : first + states + 1]
        matrix[i] = np.diff(cumulated, prepend=0.0)
    times = np.linalg.solve(np.eye(states) - matrix, np.ones(states))
    return float(times[0])


CONFIDENCE = 0.95


def checks_needed(failure_rate: float, *, confidence: float = CONFIDENCE) -> int:
    """Return how many clean checks bound the failure rate.

    Examples
    --------
    >>> checks_needed(0.01), checks_needed(1e-4)
    (299, 29956)

    Raises
    ------
    ValueError
        If a rate or a confidence is not between 0 and 1.
    """
    _between(failure_rate, confidence)
    return math.ceil(math.log1p(-confidence) / math.log1p(-failure_rate))


def failure_rate_bound(clean_checks: int, *, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of the share of wrong launches; 1 without a check.

    Examples
    --------
    >>> failure_rate_bound(0), round(failure_rate_bound(300), 5)
    (1.0, 0.00994)

    Raises
    ------
    ValueError
        If the confidence is not between 0 and 1, or the number of checks is negative.
    """
    _between(0.5, confidence)
    if clean_checks < 0:
        raise ValueError(f"checks must not be negative, got {clean_checks}")
    return 1.0 if clean_checks == 0 else -math.expm1(math.log1p(-confidence) / clean_checks)


def chance_found(failure_rate: float, *, checks: int) -> float:
    """Return the chance that so many checks find a kernel that fails in this share of launches.

    Examples
    --------
    >>> round(chance_found(0.01, checks=299), 3)
    0.95

    Raises
    ------
    ValueError
        If the rate is not between 0 and 1.
    """
    _between(failure_rate, CONFIDENCE)
    return -math.expm1(checks * math.log1p(-failure_rate))


def seconds_to_find(
    failure_rate: float, *, every: int, launches_per_s: float, confidence: float = CONFIDENCE
) -> float:
    """Return the time within which such a kernel is found, at one check in so many launches.

    Examples
    --------
    >>> round(seconds_to_find(0.01, every=50, launches_per_s=3000.0), 2)
    4.98

    Raises
    ------
    ValueError
        If a rate or the confidence is out of range.
    """
    if every < 1 or launches_per_s <= 0.0:
        raise ValueError(
            f"a rate must be positive, got one in {every} of {launches_per_s} launches per second"
        )
    return checks_needed(failure_rate, confidence=confidence) * every / launches_per_s


def sentence(clean_checks: int) -> str:
    """Describe what so many clean checks prove.

    Examples
    --------
    >>> sentence(300)
    'wrong in less than 0.99 % of launches (95 % sure)'
    >>> sentence(0)
    'its failure rate is unknown'
    """
    if clean_checks <= 0:
        return "its failure rate is unknown"
    bound = 100.0 * failure_rate_bound(clean_checks)
    return f"wrong in less than {bound:.2g} % of launches (95 % sure)"


def _between(rate: float, confidence: float) -> None:
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a failure rate of {rate} is not between 0 and 1")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
