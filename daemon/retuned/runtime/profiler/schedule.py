"""Schedule of windows: when and for how long; pure."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

MIN_LENGTH_S = 0.005
"""Shortest window: a step of a small model fits in."""
MAX_STALL_S = 0.02
"""A longer stall makes the next window shorter, because writing a trace holds the interpreter."""
MAX_PAUSE_S = 3600.0
"""Longest pause after a window with a high cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    every_s: float = 90.0
    """From one window to the next, seconds, or longer if the budget requires it.

    Extended by up to a fifth at random, so that replicas do not coincide.
    """
    length_s: float = 0.2
    budget_ratio: float = 0.01
    """Maximum share of all time for windows, including starting, stopping and writing."""
    folder_bytes: int = 256 << 20
    """Nothing is written while the folder has more; half of what a sidecar allows."""


def rule_of(variables: Mapping[str, str]) -> Rule | None:
    """Read the rule from the environment; None if no windows must be taken.

    An invalid value is logged, and the default applies: a server's start must not fail for it.

    Examples
    --------
    >>> rule_of({"RETUNED_TRACE_DIR": "/traces", "RETUNED_PROFILE_MS": "50"}).length_s
    0.05
    >>> rule_of({}) is rule_of({"RETUNED_TRACE_DIR": "/t", "RETUNED_PROFILE": "off"}) is None
    True
    """
    switch = variables.get("RETUNED_PROFILE", "").strip().lower()
    never = variables.get("RETUNED_PROFILE_EVERY_S", "").strip() == "0"
    folder = variables.get("RETUNED_TRACE_DIR", "").strip()
    if never or not folder or switch in ("off", "0", "false"):
        return None
    default = Rule()
    return Rule(
        every_s=_number(variables, "RETUNED_PROFILE_EVERY_S", (1.0, 86_400.0), default.every_s),
        length_s=_number(variables, "RETUNED_PROFILE_MS", (5.0, 5_000.0), default.length_s * 1e3)
        / 1e3,
    )


def _number(
    variables: Mapping[str, str], name: str, bounds: tuple[float, float], default: float
) -> float:
    text = variables.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    low, high = bounds
    if low <= value <= high:
        return value
    log.error("%s is %.40r, not a number from %g to %g: using %g", name, text, low, high, default)
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    open_s: float = 0.0
    """Recorded time, seconds; all of it is charged, although the server continues during it."""
    beside_s: float = 0.0
    """Starting and stopping, seconds."""
    stalled_s: float = 0.0
    """Writing the profiler's data, seconds; the interpreter waits for it."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            open_s=self.open_s + other.open_s,
            beside_s=self.beside_s + other.beside_s,
            stalled_s=self.stalled_s + other.stalled_s,
        )

    @property
    def total_s(self) -> float:
        return self.open_s + self.beside_s + self.stalled_s


def first_pause(rule: Rule, chance: float) -> float:
    """Return the seconds before the first window; `chance` in [0, 1) spreads replicas.

    Examples
    --------
    >>> first_pause(Rule(every_s=100.0), 0.0), first_pause(Rule(every_s=10.0), 0.5)
    (10.0, 5.5)
    """
    return rule.every_s * (0.1 + 0.9 * chance)


def next_pause(rule: Rule, cost: Cost, chance: float) -> float:
    """Return the seconds until the next window, so that the budget is met.

    Examples
    --------
    >>> next_pause(Rule(every_s=100.0), Cost(open_s=0.2), 0.0)
    100.0
    >>> next_pause(Rule(every_s=100.0), Cost(open_s=0.2, beside_s=2.8), 0.0)
    300.0
    """
    afforded_s = cost.total_s / rule.budget_ratio
    return min(max(rule.every_s, afforded_s) * (1.0 + 0.2 * chance), MAX_PAUSE_S)


def first_length(rule: Rule) -> float:
    """Return the length of the first window, seconds: short, since its cost is unknown."""
    return max(MIN_LENGTH_S, rule.length_s / 8.0)


def next_length(rule: Rule, length_s: float, cost: Cost) -> float:
    """Return the length of the next window, seconds: twice as long, or shorter after a stall.

    Examples
    --------
    >>> next_length(Rule(length_s=0.2), 0.15, Cost())
    0.2
    >>> next_length(Rule(length_s=0.2), 0.2, Cost(stalled_s=0.04))
    0.1
    """
    if cost.stalled_s > MAX_STALL_S:
        return max(MIN_LENGTH_S, length_s * MAX_STALL_S / cost.stalled_s)
    return min(rule.length_s, length_s * 2.0)
