"""vLLM's and SGLang's rule, the row of the nearest batch size, and how it is kept where it was.

A row that is added anywhere draws batch sizes to itself from both sides, without a limit of
distance. What a server picks is a step function of the batch size; a table that has a row at both
ends of every step picks exactly these steps. So the ends of steps are pinned, as few as needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from retuned.runtime.spec import Refused
from retuned.runtime.tuned.moe_json import Config, Rows, same
from retuned.runtime.tuned.strict import MAX_M

MAX_ADDED = 256
"""Most rows that one change may write."""


@dataclass(frozen=True, slots=True)
class Run:
    """Batch sizes, inclusive, that get the same parameters."""

    first: int
    last: int
    """`MAX_M` stands for all that follow."""
    config: Config


@dataclass(frozen=True, slots=True)
class Pinned:
    """A table that changes nothing outside its guard."""

    rows: Rows
    """All of it, in file order."""
    pins: tuple[int, ...]
    """Rows that are there to keep what was picked."""
    before: tuple[Run, ...]
    """What was picked."""
    after: tuple[Run, ...]
    """What is picked with `rows`."""


Guard = tuple[tuple[int, int], ...]
"""Ranges of batch sizes, inclusive, rising, apart."""


def runs_of(rows: Rows) -> tuple[Run, ...]:
    """Return what is picked for every batch size from 1 on; of two as near, the first in `rows`.

    Examples
    --------
    >>> [(run.first, run.last) for run in runs_of(((8, {"a": 1}), (4, {"a": 2})))]
    [(1, 5), (6, 2147483647)]
    """
    place = {m: index for index, (m, _) in enumerate(rows)}
    configs = dict(rows)
    found: list[Run] = []
    first = 1
    for low, high in pairwise(sorted(place)):
        last = (low + high) // 2
        if (low + high) % 2 == 0 and place[high] < place[low]:
            last -= 1
        found.append(Run(first, last, configs[low]))
        first = last + 1
    if rows:
        found.append(Run(first, MAX_M, configs[max(place)]))
    return joined(found)


def picked(runs: Sequence[Run], m: int) -> Config:
    """Return what is picked for a batch size."""
    return runs[bisect_right(runs, m, key=_first) - 1].config


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Make one of neighbours that say the same."""
    found: list[Run] = []
    for run in runs:
        if found and same(found[-1].config, run.config) and found[-1].last + 1 == run.first:
            found[-1] = Run(found[-1].first, run.last, found[-1].config)
        else:
            found.append(run)
    return tuple(found)


def pin(old: Rows, new: Rows, *, guard: Guard, defaults: Sequence[Run] = ()) -> Pinned:
    """Change what is picked inside the guard, and nothing outside of it.

    Parameters
    ----------
    old
        Rows of the file; none if there is no file.
    new
        New rows, each inside the guard; every range of the guard has at least one. Inside of a
        range the nearest new row is picked.
    guard
        Batch sizes that shall change.
    defaults
        What the server picks without a file, for every batch size; only used without `old`.

    Raises
    ------
    Refused
        ``default-unknown``, ``row-outside-guard``, ``guard-without-row`` or ``too-many-rows``.
    """
    before = runs_of(old) if old else _whole(defaults)
    wanted = _overlaid(before, new, guard)
    kept = tuple(row for row in old if not _inside(guard, row[0]))
    pins: set[int] = set()
    fixed = {m for m, _ in (*kept, *new)}
    while wrong := _wrong(wanted, runs_of(_table(kept, new, pins, wanted))):
        near = {m for _, ends in wrong for m in ends} - fixed - pins
        both = {m for run, _ in wrong for m in (run.first, run.last)} - fixed - pins - {MAX_M}
        assert both, "a table with a row at both ends of every step picks these steps"
        pins |= near or both
        if len(pins) + len(new) > MAX_ADDED:
            detail = f"more than {MAX_ADDED} rows would have to be written to keep all others"
            raise Refused("too-many-rows", detail=detail)
    _spare(pins, lambda fewer: not _wrong(wanted, runs_of(_table(kept, new, fewer, wanted))))
    rows = _table(kept, new, pins, wanted)
    return Pinned(rows, tuple(sorted(pins)), before, runs_of(rows))


def _whole(defaults: Sequence[Run]) -> tuple[Run, ...]:
    """Return the defaults if they say something about every batch size."""
    apart = any(one.last + 1 != other.first for one, other in pairwise(defaults))
    if not defaults or apart or defaults[0].first != 1 or defaults[-1].last != MAX_M:
        detail = "there is no file, and what the server picks without one is not told for every M"
        raise Refused("default-unknown", detail=detail)
    return joined(defaults)


def _overlaid(before: Sequence[Run], new: Rows, guard: Guard) -> tuple[Run, ...]:
    """Return what shall be picked."""
    outside = [m for m, _ in new if not _inside(guard, m)]
    if outside:
        raise Refused("row-outside-guard", detail=f"rows for M={outside[:8]} are not guarded")
    found: list[Run] = []
    at = 1
    for low, high in guard:
        rows = tuple(sorted((row for row in new if low <= row[0] <= high), key=lambda row: row[0]))
        if not rows:
            detail = f"no new row lies in {low}..{high}, which would get a row of somewhere else"
            raise Refused("guard-without-row", detail=detail)
        found += _cut(before, at, low - 1)
        found += _cut(runs_of(rows), low, high)
        at = high + 1
    found += _cut(before, at, MAX_M)
    return joined(found)


def _cut(runs: Sequence[Run], low: int, high: int) -> list[Run]:
    """Return the part of some steps that lies in a range; none of an empty one."""
    if low > high:
        return []
    begin = max(0, bisect_right(runs, low, key=_first) - 1)
    end = bisect_right(runs, high, key=_first)
    return [
        Run(max(run.first, low), min(run.last, high), run.config)
        for run in runs[begin:end]
        if run.last >= low
    ]


def _first(run: Run) -> int:
    return run.first


def _inside(guard: Guard, m: int) -> bool:
    return any(low <= m <= high for low, high in guard)


def _table(kept: Rows, new: Rows, pins: Iterable[int], wanted: Sequence[Run]) -> Rows:
    """Put rows where a reader expects them: among rising ones by size, else at the end."""
    added = [*new, *((m, picked(wanted, m)) for m in pins)]
    if all(one[0] < other[0] for one, other in pairwise(kept)):
        return tuple(sorted((*kept, *added), key=lambda row: row[0]))
    return (*kept, *sorted(added, key=lambda row: row[0]))


def _spare(pins: set[int], enough: Callable[[set[int]], bool]) -> None:
    """Take out what is not needed; what was needed for its neighbour's sake may go after it."""
    before = -1
    while before != len(pins):
        before = len(pins)
        for m in sorted(pins):
            if enough(pins - {m}):
                pins.remove(m)


def _wrong(wanted: Sequence[Run], found: Sequence[Run]) -> list[tuple[Run, set[int]]]:
    """Return the steps that are not picked as they shall be, with the ends where it goes wrong."""
    wrong = []
    for run in wanted:
        parts = [p for p in _cut(found, run.first, run.last) if not same(p.config, run.config)]
        if parts:
            firsts = {part.first for part in parts} & {run.first}
            wrong.append((run, firsts | ({part.last for part in parts} & {run.last} - {MAX_M})))
    return wrong
