"""Alarms to numbers: rates with intervals, detection, delays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, inf
from typing import Any

import numpy as np
from benchmarks.drift_sim.detectors import Alarm

REFRACTORY = 36
"""Windows after an alarm in which no further one is counted: 6 h, one page per incident."""


def distinct(alarms: Iterable[Alarm]) -> list[Alarm]:
    """Alarms that a person would have seen as separate ones."""
    kept: list[Alarm] = []
    for alarm in alarms:
        if not kept or alarm.window - kept[-1].window >= REFRACTORY:
            kept.append(alarm)
    return kept


def rate(events: int, days: float) -> dict[str, Any]:
    """Events a day with the exact 95 % interval of a Poisson count (Garwood 1936)."""
    low = 0.0 if events == 0 else _solve(lambda m: 1 - _cdf(events - 1, m) - 0.025, events)
    high = _solve(lambda m: 0.025 - _cdf(events, m), events)
    return {
        "events": events,
        "days": days,
        "per_day": round(events / days, 4),
        "poisson_95": [round(low / days, 4), round(high / days, 4)],
    }


def _cdf(count: int, mean: float) -> float:
    term = total = exp(-mean)
    for k in range(1, count + 1):
        term *= mean / k
        total += term
    return total


def _solve(rising: Callable[[float], float], events: int) -> float:
    low, high = 0.0, 4.0 * events + 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def detection(delays_h: Sequence[float | None]) -> dict[str, Any]:
    """Share found within 1, 2 and 24 h, and the median and 90th percentile of the delay.

    A drift that was not found counts as an infinite delay; such a quantile is null.
    """
    if not delays_h:
        return {"injections": 0}
    delays = np.array([inf if delay is None else delay for delay in delays_h])

    def quantile(share: float) -> float | None:
        value = float(np.quantile(delays, share, method="higher"))
        return None if value == inf else round(value, 2)

    found = int(np.sum(delays <= 2))
    return {
        "injections": len(delays),
        "within_2h_wilson_95": _wilson(found, len(delays)),
        "within_1h": round(float(np.mean(delays <= 1)), 3),
        "within_2h": round(float(np.mean(delays <= 2)), 3),
        "within_24h": round(float(np.mean(delays <= 24)), 3),
        "delay_median_h": quantile(0.5),
        "delay_p90_h": quantile(0.9),
    }


def _wilson(found: int, total: int) -> list[float] | None:
    """95 % interval of a proportion (Wilson 1927); null without trials."""
    if not total:
        return None
    z2, share = 1.96**2, found / total
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = 1.96 * (share * (1 - share) / total + z2 / (4 * total**2)) ** 0.5 / (1 + z2 / total)
    return [round(max(0.0, centre - half), 3), round(min(1.0, centre + half), 3)]
