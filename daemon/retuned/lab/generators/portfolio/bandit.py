"""Whose turn it is: Thompson sampling over improvement per second, with forgetting.

A turn's gain is the logarithm by which it raised the best lower bound, per second that it cost.
Generators that learn run out of improvements, and others improve only once another has found the
right structure. So old turns lose weight: a generator without recent turns is as unknown as at the
start.

Formula: a turn that is ``k`` turns old weighs ``memory**k``. A generator with weighted gain ``G``
and weighted seconds ``S`` is believed to bring ``UNIT`` of gain at a rate that is Gamma distributed
with shape ``1 + G / UNIT`` and rate ``1 / r + S``, where ``r`` is the rate of all turns together:
a generator without turns has the mean of the average, and a wide distribution. The largest draw has
the turn.

What earlier experiments showed counts like `PSEUDO_TURNS` turns of today, as `PSEUDO_MOST`
events at most: to the events ``advantage`` times the average rate over their seconds is added, and
to the seconds those. It also says who of those never asked comes first; all are asked once, so a
wrong prior is overruled in a few turns whatever it claims.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.stages.experiment import Turn

UNIT = math.log(1.02)
"""Gain that counts as one event: the least that a swap is worth."""
PSEUDO_TURNS = 2.0
"""Turns of today that earlier experiments count for."""
PSEUDO_MOST = 3.0
"""Most events that they count for."""
_ADVANTAGE = 8.0
"""No advantage, or drawback, counts for more."""
_SHORTEST_S = 1e-3
"""A turn that cost nothing still cost this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditSettings:
    """How quickly the past is forgotten."""

    memory: float = 0.95
    """Weight of a turn, relative to the turn after it: a half after fourteen turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision."""

    generator: str
    """Whose turn it is."""
    because: str
    """Why, one sentence with the numbers."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What the turns of one generator say of it, older turns less."""

    events: float
    seconds: float
    turns: float


def choose(
    turns: Sequence[Turn],
    *,
    alive: Sequence[str],
    seed: int,
    settings: BanditSettings | None = None,
    advantages: Mapping[str, float] | None = None,
) -> Choice:
    """Decide whose turn it is; the same seed and turns give the same answer.

    Parameters
    ----------
    turns
        Turns so far, oldest first; those of generators that dropped out count for the average.
    alive
        Who may be asked, in the plan's order.
    seed
        Decides the draws.
    settings
        How quickly the past is forgotten.
    advantages
        How much more a second than the average each brought in earlier experiments; 1 where it is
        not known.

    Raises
    ------
    ValueError
        If `alive` is empty.

    Examples
    --------
    >>> choose([], alive=["search", "recipes"], seed=0).generator
    'search'
    """
    if not alive:
        raise ValueError("alive is empty: every generator has failed or is spent")
    asked = {turn.generator for turn in turns}
    if len(alive) == 1:
        return Choice(generator=alive[0], because="no other generator is left")
    known = advantages or {}
    fresh = [name for name in alive if name not in asked]
    if fresh:
        # the first of equals: the plan's order where nothing is known
        first = max(fresh, key=lambda name: _bounded(known.get(name, 1.0)))
        return Choice(generator=first, because="it was never asked")
    records = _records(turns, (settings or BanditSettings()).memory)
    everybody_s = sum(record.seconds for record in records.values())
    average = (1.0 + sum(record.events for record in records.values())) / everybody_s
    turn_s = everybody_s / sum(record.turns for record in records.values())
    prior = {
        name: _pseudo(known[name], average=average, turn_s=turn_s)
        if name in known
        else _Record(0.0, 0.0, 0.0)
        for name in alive
    }
    # A string seeds the same way in every process; hash() would not.
    chance = random.Random(f"{seed}:{len(turns)}")
    draws = {
        name: chance.gammavariate(
            1.0 + records[name].events + prior[name].events,
            1.0 / (1.0 / average + records[name].seconds + prior[name].seconds),
        )
        for name in alive
    }
    best = max(alive, key=lambda name: draws[name])
    return Choice(generator=best, because=_because(draws[best] * UNIT, records[best]))


def _pseudo(advantage: float, *, average: float, turn_s: float) -> _Record:
    """Return a generator's record of earlier experiments in turns of the current length."""
    seconds = PSEUDO_TURNS * turn_s
    events = min(seconds * average * _bounded(advantage), PSEUDO_MOST)
    return _Record(events, seconds, PSEUDO_TURNS)


def _bounded(advantage: float) -> float:
    """Bound an advantage; an infinite or NaN value counts as 1, no advantage."""
    if not math.isfinite(advantage):
        return 1.0
    return max(1.0 / _ADVANTAGE, min(_ADVANTAGE, advantage))


def _records(turns: Sequence[Turn], memory: float) -> dict[str, _Record]:
    found: dict[str, _Record] = {}
    for age, turn in enumerate(reversed(turns)):
        before = found.get(turn.generator, _Record(0.0, 0.0, 0.0))
        weight = memory**age
        found[turn.generator] = _Record(
            before.events + weight * math.log(turn.gain_ratio) / UNIT,
            before.seconds + weight * max(turn.seconds, _SHORTEST_S),
            before.turns + weight,
        )
    return found


def _because(drawn: float, record: _Record) -> str:
    seen = record.events * UNIT / record.seconds
    return (
        f"drawn {drawn:.2%} gain a second, the most of all; it brought {seen:.2%} a second "
        f"in {record.seconds:.1f} s of recent turns"
    )
