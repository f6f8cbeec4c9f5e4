"""Rules by which servers pick rows, and how a change keeps all picks outside its guard.

AITER looks a shape up by its batch size, then by the padded size, coarser each time. A row attracts
the batch sizes that are padded to it and that had no separate row before; they are pinned with the
row they had. AITER's padding has changed several times. Each version has a name here, and a
server's own function is called at the sizes where they differ.

vLLM and SGLang use the row of the nearest batch size.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.moe_json import Config, Rows, same
from retuned.runtime.tuned_files.strict import MAX_M

MAX_ADDED = 256


@dataclass(frozen=True, slots=True)
class Run:
    """Batch sizes, inclusive, that get the same parameters."""

    first: int
    last: int
    """`MAX_M` means that the run has no end."""
    config: Config


@dataclass(frozen=True, slots=True)
class Pinned:
    rows: Rows
    """The whole table, in file order."""
    pins: tuple[int, ...]
    """Rows that keep earlier picks."""
    before: tuple[Run, ...]
    after: tuple[Run, ...]


Guard = tuple[tuple[int, int], ...]
"""Ranges of batch sizes, inclusive, rising, disjoint."""


def runs_of(rows: Rows) -> tuple[Run, ...]:
    """Return what is picked for every batch size from 1 on.

    If two are as near, the first in `rows`.

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
    return runs[bisect_right(runs, m, key=_first) - 1].config


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
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
    new
        New rows, each inside the guard; every range of the guard has at least one. Inside a range
        the nearest new row is picked.
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
            detail = f"more than {MAX_ADDED} rows would be needed to keep all other picks"
            raise Refused("too-many-rows", detail=detail)
    _spare(pins, lambda fewer: not _wrong(wanted, runs_of(_table(kept, new, fewer, wanted))))
    rows = _table(kept, new, pins, wanted)
    return Pinned(rows, tuple(sorted(pins)), before, runs_of(rows))


def _whole(defaults: Sequence[Run]) -> tuple[Run, ...]:
    """Return the defaults if they cover every batch size."""
    apart = any(one.last + 1 != other.first for one, other in pairwise(defaults))
    if not defaults or apart or defaults[0].first != 1 or defaults[-1].last != MAX_M:
        detail = "the file does not exist, and the defaults do not cover every M"
        raise Refused("default-unknown", detail=detail)
    return joined(defaults)


def _overlaid(before: Sequence[Run], new: Rows, guard: Guard) -> tuple[Run, ...]:
    outside = [m for m, _ in new if not _inside(guard, m)]
    if outside:
        raise Refused("row-outside-guard", detail=f"rows for M={outside[:8]} are not guarded")
    found: list[Run] = []
    at = 1
    for low, high in guard:
        rows = tuple(sorted((row for row in new if low <= row[0] <= high), key=lambda row: row[0]))
        if not rows:
            detail = f"no new row is in {low}..{high}, which would get a row from outside"
            raise Refused("guard-without-row", detail=detail)
        found += _cut(before, at, low - 1)
        found += _cut(runs_of(rows), low, high)
        at = high + 1
    found += _cut(before, at, MAX_M)
    return joined(found)


def _cut(runs: Sequence[Run], low: int, high: int) -> list[Run]:
    """Return the part of some steps that is in a range; none of an empty one."""
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
    """Insert rows where a reader expects them: by size if the rows are rising, else at the end."""
    added = [*new, *((m, picked(wanted, m)) for m in pins)]
    if all(one[0] < other[0] for one, other in pairwise(kept)):
        return tuple(sorted((*kept, *added), key=lambda row: row[0]))
    return (*kept, *sorted(added, key=lambda row: row[0]))


def _spare(pins: set[int], enough: Callable[[set[int]], bool]) -> None:
    """Remove pins that are not needed; this may make a neighbour's pin removable too."""
    before = -1
    while before != len(pins):
        before = len(pins)
        for m in sorted(pins):
            if enough(pins - {m}):
                pins.remove(m)


def _wrong(wanted: Sequence[Run], found: Sequence[Run]) -> list[tuple[Run, set[int]]]:
    """Return the steps that are not picked as required, with the ends where they differ."""
    wrong = []
    for run in wanted:
        parts = [p for p in _cut(found, run.first, run.last) if not same(p.config, run.config)]
        if parts:
            firsts = {part.first for part in parts} & {run.first}
            wrong.append((run, firsts | ({part.last for part in parts} & {run.last} - {MAX_M})))
    return wrong


Chain = Callable[[int], tuple[int, ...]]
"""From a batch size to the keys that are looked up for it, in order."""
TOP = 1 << 17
"""Largest batch size that a change of such a table may guard."""


def power_of_two(m: int) -> int:
    """Return the smallest power of two that is not below."""
    return 1 if m <= 1 else 1 << (m - 1).bit_length()


def _fine(m: int) -> int:
    step = 16 if m <= 256 else 32 if m <= 1024 else 64 if m <= 4096 else 128
    return -(-m // step) * step


def gemm_chain(rule: str, n: int) -> Chain:
    """Return the keys of a matrix product.

    Parameters
    ----------
    rule
        One of `GEMM_RULES`.
    n
        Columns of the result.

    Examples
    --------
    >>> gemm_chain("fine-then-power", 1024)(100)
    (100, 112, 128)
    >>> gemm_chain("fine-then-capped", 8192)(10000)
    (10000, 10112, 8192)
    """

    def chain(m: int) -> tuple[int, ...]:
        coarse = power_of_two(m)
        if rule != "fine-then-power" and m > 8192 and n > 4096:
            coarse = 8192
        fine = power_of_two(m) if rule == "small-power-then-capped" and m < 16 else _fine(m)
        return m, fine, coarse

    return chain


GEMM_RULES = ("fine-then-power", "fine-then-capped", "small-power-then-capped")
"""From the oldest to the newest, named by their effect."""


def moe_chain(rule: str) -> Chain:
    """Return the key of a mixture of experts, by one of `MOE_RULES`.

    No batch size has a separate key.
    """

    def chain(m: int) -> tuple[int, ...]:
        if rule == "tiers-1024-2048-16384":
            if m < 1024:
                return (power_of_two(m),)
            return (1024 if m < 2048 else 2048 if m < 16384 else 16384,)
        if rule == "power-to-131072":
            return (m,) if m == 20480 else (min(power_of_two(m), 131072),)
        return (power_of_two(m) if m < 32768 else 32768 if m < 131072 else 131072,)

    return chain


MOE_RULES = ("tiers-1024-2048-16384", "power-to-131072", "power-then-tiers")
"""As `GEMM_RULES`."""


@dataclass(frozen=True, slots=True)
class Padded:
    rows: dict[int, str]
    """By batch size: ``new:<M>`` for the new row of that M, ``old:<M>`` for a copy of that row."""
    affected: tuple[int, ...]
    """Batch sizes outside the guard that would have changed; all are pinned."""


def plan_padded(old: Iterable[int], new: Iterable[int], *, guard: Guard, chain: Chain) -> Padded:
    """Change what is picked inside the guard, and nothing outside of it.

    Parameters
    ----------
    old
        Batch sizes that have a row for this shape.
    new
        Batch sizes of the new rows. A size of the guard gets the smallest one not below it, else
        the greatest.
    guard
        Ranges up to `TOP`.

    Raises
    ------
    Refused
        ``guard-unbounded``, ``guard-without-row``, ``guard-splits-padding`` (sizes inside and
        outside always share a row), ``default-unknown`` (a size outside had no row, so its default
        cannot be written), ``cannot-pin`` (unbounded sizes share a row) or ``too-many-rows``.
    """
    rising = sorted(new)
    if not rising:
        raise Refused("guard-without-row", detail="the change has no row")
    if not guard or guard[-1][1] > TOP:
        raise Refused("guard-unbounded", detail=f"the guard of such a table ends at {TOP} at most")
    chain = functools.cache(chain)
    had = {m: f"old:{m}" for m in old}
    inside = [m for low, high in guard for m in range(low, high + 1)]
    wanted = {m: f"new:{next((n for n in rising if n >= m), rising[-1])}" for m in inside}
    written: dict[int, str] = {}
    pinned: set[int] = set()
    # Whole classes first: one row if all sizes that are padded to it are guarded.
    for m in rising:
        if m in wanted or all(each in wanted for each in _drawn({m}, chain)):
            written[m] = f"new:{m}"
    while True:
        table = had | written
        before = len(written)
        for m in sorted(_drawn(written.keys(), chain) | set(inside)):
            expected = wanted.get(m) or _picked(had, chain(m))
            if _picked(table, chain(m)) == expected:
                continue
            if m == MAX_M:
                detail = f"all sizes beyond the last tier share {chain(m)[-1]}; it cannot be pinned"
                raise Refused("cannot-pin", detail=detail)
            key = chain(m)[0]
            if written.get(key, expected) != expected:
                detail = f"M={m} is looked up as {key}, like sizes that must get another row"
                raise Refused("guard-splits-padding", detail=detail)
            if not expected:
                detail = f"M={m} has no row, and would get that of {chain(m)}; guard it, too"
                raise Refused("default-unknown", detail=detail)
            written[key] = expected
            table[key] = expected
            if m not in wanted:
                pinned.add(m)
        if len(written) > MAX_ADDED:
            raise Refused("too-many-rows", detail=f"more than {MAX_ADDED} rows would be needed")
        if len(written) == before:
            break
    return Padded(dict(sorted(written.items())), tuple(sorted(pinned)))


def _picked(table: Mapping[int, str], keys: tuple[int, ...]) -> str:
    """Return the row that is found first; empty if there is none."""
    return next((table[key] for key in keys if key in table), "")


def _drawn(keys: Iterable[int], chain: Chain) -> set[int]:
    """Return the batch sizes for which one of the keys is looked up.

    Padding goes up to twice or by 127, or down to at least an eighth. The sizes beyond the last
    tier are unbounded; `MAX_M` represents them.
    """
    wanted = set(keys)
    near: set[int] = set()
    for key in wanted:
        near.update(range(max(1, min(key // 2, key - 127)), min(8 * key, TOP) + 1))
    found = {m for m in near if not wanted.isdisjoint(chain(m))}
    if not wanted.isdisjoint(chain(MAX_M)):
        found.add(MAX_M)
    return found
