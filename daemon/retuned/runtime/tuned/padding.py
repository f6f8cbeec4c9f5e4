"""AITER's rule: a shape is looked up by its batch size, then by it padded, coarser each time.

What a row attracts are the batch sizes that are padded to it and have no row of their own before.
They are pinned with the row they had. How AITER pads has changed several times; each way has a
name here, and a server's own function is asked at the sizes where they differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from retuned.runtime.spec import Refused
from retuned.runtime.tuned.nearest import MAX_ADDED, Guard
from retuned.runtime.tuned.strict import MAX_M

Chain = Callable[[int], tuple[int, ...]]
"""From a batch size to the keys that are looked up for it, in order."""
TOP = 1 << 17
"""Largest batch size that a change of such a table may guard."""


def power_of_two(m: int) -> int:
    """Return the least power of two that is not below."""
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
"""From the oldest to the newest, by what they do."""


def moe_chain(rule: str) -> Chain:
    """Return the key of a mixture of experts: one of `MOE_RULES`, no batch size has its own."""

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
    """What has to be written."""

    rows: dict[int, str]
    """By batch size: ``new:<M>`` for the new row of that M, ``old:<M>`` for a copy of that row."""
    affected: tuple[int, ...]
    """Batch sizes outside the guard that would have been drawn in; all are pinned."""


def plan_padded(old: Iterable[int], new: Iterable[int], *, guard: Guard, chain: Chain) -> Padded:
    """Change what is picked inside the guard, and nothing outside of it.

    Parameters
    ----------
    old
        Batch sizes that have a row for this shape.
    new
        Batch sizes of the new rows. A size of the guard gets that of the least one not below it,
        else of the greatest.
    guard
        Ranges up to `TOP`.
    chain
        How the server looks up.

    Raises
    ------
    Refused
        ``guard-unbounded``, ``guard-without-row``, ``guard-splits-padding`` (sizes inside and
        outside always share a row), ``default-unknown`` (a size outside had no row, so what the
        server picks for it cannot be written down), ``cannot-pin`` (sizes without end share a row)
        or ``too-many-rows``.
    """
    rising = sorted(new)
    if not rising:
        raise Refused("guard-without-row", detail="there is no new row")
    if not guard or guard[-1][1] > TOP:
        raise Refused("guard-unbounded", detail=f"the guard of such a table ends at {TOP} at most")
    chain = functools.cache(chain)
    had = {m: f"old:{m}" for m in old}
    inside = [m for low, high in guard for m in range(low, high + 1)]
    wanted = {m: f"new:{next((n for n in rising if n >= m), rising[-1])}" for m in inside}
    written: dict[int, str] = {}
    pinned: set[int] = set()
    # Whole classes first: one row where all sizes that are padded to it are guarded.
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
                detail = f"M={m} is looked up as {key}, and so are sizes that shall get another row"
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
    """Return the batch sizes that one of the keys is looked up for.

    Padding goes up to twice or by 127, or down to no less than an eighth. What is beyond the last
    tier has no end; `MAX_M` stands for it.
    """
    wanted = set(keys)
    near: set[int] = set()
    for key in wanted:
        near.update(range(max(1, min(key // 2, key - 127)), min(8 * key, TOP) + 1))
    found = {m for m in near if not wanted.isdisjoint(chain(m))}
    if not wanted.isdisjoint(chain(MAX_M)):
        found.add(MAX_M)
    return found
