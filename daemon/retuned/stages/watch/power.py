"""What so many clean checks prove. Pure.

A kernel that is wrong in a share `f` of its launches passes one check with chance ``1 - f``, and
`n` independent ones with ``(1 - f) ** n``: after ``3 / f`` clean checks it is 95 % sure that it is
wrong less often. Nothing is ever proven about shapes that were not checked.
"""

from __future__ import annotations

import math

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
    """Return what the share of wrong launches is below; 1 without a check.

    Examples
    --------
    >>> failure_rate_bound(0), round(failure_rate_bound(300), 5)
    (1.0, 0.00994)

    Raises
    ------
    ValueError
        If the confidence is not between 0 and 1, or there are fewer checks than none.
    """
    _between(0.5, confidence)
    if clean_checks < 0:
        raise ValueError(f"{clean_checks} checks cannot be")
    return 1.0 if clean_checks == 0 else -math.expm1(math.log1p(-confidence) / clean_checks)


def chance_found(failure_rate: float, *, checks: int) -> float:
    """Return how likely so many checks find a kernel that is wrong in this share of launches.

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
    """Return within how long such a kernel is found, at one check in so many launches.

    Examples
    --------
    >>> round(seconds_to_find(0.01, every=50, launches_per_s=3000.0), 2)
    4.98

    Raises
    ------
    ValueError
        If a rate or the confidence makes no sense.
    """
    if every < 1 or launches_per_s <= 0.0:
        raise ValueError(f"one in {every} of {launches_per_s} launches per second is no rate")
    return checks_needed(failure_rate, confidence=confidence) * every / launches_per_s


def sentence(clean_checks: int) -> str:
    """Say what so many clean checks prove.

    Examples
    --------
    >>> sentence(300)
    'wrong in less than 0.99 % of launches (95 % sure)'
    >>> sentence(0)
    'nothing is known of its failure rate'
    """
    if clean_checks <= 0:
        return "nothing is known of its failure rate"
    bound = 100.0 * failure_rate_bound(clean_checks)
    return f"wrong in less than {bound:.2g} % of launches (95 % sure)"


def _between(rate: float, confidence: float) -> None:
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a failure rate of {rate} is not between 0 and 1")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
