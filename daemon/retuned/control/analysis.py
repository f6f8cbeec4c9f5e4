"""Analysis of one metric: its value now against its value before the swap. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from retuned.api.proposal import LookOutcome
from retuned.stages.gate.limits import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two values of one metric."""

    before: float | None = None
    """Value when the first pod got the order; None if unknown."""
    now: float | None = None
    """Value now; None if unknown."""
    samples: int | None = None
    """Stored samples behind `now`; None if unknown."""


NOTHING = Compared()
"""No values are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of one metric."""

    outcome: LookOutcome
    sentence: str
    """The result with its numbers."""


def judge(metric: Metric, compared: Compared) -> Measured:
    """Judge a metric. A missing, negative or non-numeric value is never a pass.

    Parameters
    ----------
    metric
        Of the policy: its bound is a ratio over the baseline.
    compared
        The measured values.

    Examples
    --------
    >>> metric = Metric(name="ttft_p95", query="q", max="1.1x baseline", min_samples=10)
    >>> def said(before, now, samples=50):
    ...     return str(judge(metric, Compared(before=before, now=now, samples=samples)).outcome)
    >>> said(2.0, 2.1), said(2.0, 2.3), said(2.0, 2.1, samples=9), said(None, 2.1)
    ('Passed', 'Failed', 'Inconclusive', 'Inconclusive')
    """
    before, now = _usable(compared.before), _usable(compared.now)
    if before is None or now is None:
        missing = "value now" if now is None else "value from before the swap"
        return _unknown(metric, f"has no {missing}")
    if compared.samples is None or compared.samples < metric.min_samples:
        rests = "an unknown number of" if compared.samples is None else str(compared.samples)
        return _unknown(metric, f"rests on {rests} samples, {metric.min_samples} are required")
    most = ratio_of(metric) * before
    outcome = LookOutcome.PASSED if now <= most else LookOutcome.FAILED
    sentence = f"{metric.name} is {now:.4g}, before {before:.4g}, at most {most:.4g}"
    return Measured(outcome=outcome, sentence=sentence)


def ratio_of(metric: Metric) -> float:
    """Return the bound of a metric, as a ratio over the baseline.

    Examples
    --------
    >>> ratio_of(Metric(name="a", query="q", max="1.02x baseline"))
    1.02
    """
    return float(metric.max.partition("x")[0])


def _usable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0.0 else None


def _unknown(metric: Metric, why: str) -> Measured:
    return Measured(outcome=LookOutcome.INCONCLUSIVE, sentence=f"{metric.name} {why}")
