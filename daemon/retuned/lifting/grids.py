"""The rule by which a grid follows lengths and constexprs, from the grids that were seen.

A rule is a whole number times a product; a factor is an axis, or axes divided by a tile rounding
up. Every rule that fits every launch is a candidate. Where two candidates would launch another
number of programs at other lengths, no choice is made: more launches are needed. Where they differ
only in which tile they name, the source decides: which tile is compared with which length.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import prod

from retuned.lifting.records import MORE, NotLifted

_MOST_FACTORS = 3
_MOST_RULES = 60_000
_MOST_FITTING = 400
_MOST_TILES = 8
_PROBES = 48
Row = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Factor:
    """Axes, multiplied; divided by a tile, rounding up, where there is one."""

    axes: tuple[str, ...]
    """Names of axes."""
    tile: str | int | None = None
    """A constexpr, or a number."""

    def at(self, row: Row) -> int:
        """Return its value."""
        length = prod(row[axis] for axis in self.axes)
        if self.tile is None:
            return length
        tile = self.tile if isinstance(self.tile, int) else row[self.tile]
        return -(-length // tile)

    def __str__(self) -> str:
        length = " * ".join(self.axes)
        return length if self.tile is None else f"cdiv({length}, {self.tile})"


@dataclass(frozen=True, slots=True)
class Rule:
    """A number of programs."""

    times: int
    """Whole number."""
    factors: tuple[Factor, ...]
    """Multiplied."""

    def at(self, row: Row) -> int:
        """Return the programs where axes and constexprs are so."""
        return self.times * prod(factor.at(row) for factor in self.factors)

    @property
    def tiles(self) -> frozenset[str]:
        """Constexprs that it names."""
        return frozenset(f.tile for f in self.factors if isinstance(f.tile, str))

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """(axis, constexpr) that it divides."""
        return frozenset(
            (axis, f.tile) for f in self.factors if isinstance(f.tile, str) for axis in f.axes
        )

    @property
    def weight(self) -> tuple[int, int, str]:
        """Simpler rules come first."""
        size = sum(len(factor.axes) + (factor.tile is not None) for factor in self.factors)
        return size, self.times, str(self)

    def __str__(self) -> str:
        parts = [str(factor) for factor in self.factors]
        if self.times != 1 or not parts:
            parts.insert(0, str(self.times))
        return " * ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the source and the caller's text say of one dimension."""

    placed: bool = True
    """Whether a program looks up its place: where none does, all do the same, however many."""
    tiles: frozenset[str] = frozenset()
    """Constexprs by which the program's place is multiplied: the only ones a rule may name."""
    plain: frozenset[int] = frozenset()
    """Numbers by which it is multiplied."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """(axis, constexpr) that the source compares."""
    named: frozenset[str] | None = None
    """Constexprs that the caller's rule looks up; None where its text is not known."""


def rule_of(
    rows: Sequence[Row], programs: Sequence[int], *, axes: Collection[str], hints: Hints
) -> Rule:
    """Infer the rule of one dimension.

    Parameters
    ----------
    rows
        Axes and whole constexprs, per launch.
    programs
        Programs, per launch.
    axes
        Names of the axes among them.
    hints
        Of the source.

    Raises
    ------
    NotLifted
        ``grid-unknown`` if no rule fits, ``needs-more-launches`` if several do.
    """
    if not hints.placed and len(set(programs)) == 1:
        return Rule(programs[0], ())
    if len(hints.tiles) + len(hints.plain) > _MOST_TILES:
        detail = f"a program's place is multiplied by {len(hints.tiles)} constexprs"
        raise NotLifted("grid-unknown", detail=detail)
    found = list(islice(_fitting(rows, programs, axes=axes, hints=hints), _MOST_FITTING + 1))
    if len(found) > _MOST_FITTING:
        raise NotLifted(MORE, detail=f"more than {_MOST_FITTING} rules give these grids")
    if not found:
        told = ", ".join(map(str, programs[:6]))
        raise NotLifted("grid-unknown", detail=f"no rule gives the grids {told}")
    found.sort(key=lambda rule: rule.weight)
    probes = _probes(rows, axes)
    kinds: dict[tuple[int, ...], Rule] = {}
    for rule in found:
        kinds.setdefault(tuple(rule.at(row) for row in probes), rule)
    if len(kinds) > 1:
        one, other = list(kinds.values())[:2]
        detail = f"the grid may be {one} or {other}; launches of other lengths tell them apart"
        raise NotLifted(MORE, detail=detail)
    return _by_source(found, hints)


def _by_source(found: Sequence[Rule], hints: Hints) -> Rule:
    """Choose among rules that agree wherever the constexprs are as they were seen."""
    left = list(found)
    if hints.named is not None:
        left = [rule for rule in left if rule.tiles == hints.named] or left
    paired = [rule for rule in left if rule.tiles and rule.pairs <= hints.pairs]
    left = paired or left
    most = max(len(rule.tiles) for rule in left)
    left = [rule for rule in left if len(rule.tiles) == most]
    if len({(rule.times, frozenset(rule.factors)) for rule in left}) > 1:
        one, other = left[:2]
        if one.tiles != other.tiles or one.pairs != other.pairs:
            detail = f"the grid may be {one} or {other}; launches with other tiles tell them apart"
            raise NotLifted(MORE, detail=detail)
    return left[0]


def _fitting(
    rows: Sequence[Row], programs: Sequence[int], *, axes: Collection[str], hints: Hints
) -> Iterator[Rule]:
    """Yield every rule that gives every grid."""
    if len(set(programs)) == 1:
        yield Rule(programs[0], ())
    for seen, factors in enumerate(_products(sorted(axes), hints)):
        if seen > _MOST_RULES:
            raise NotLifted("grid-unknown", detail="it has too many lengths and tiles")
        times, rest = divmod(programs[0], max(1, Rule(1, factors).at(rows[0])))
        rule = Rule(times, factors)
        if not rest and times >= 1 and _gives(rule, rows, programs):
            yield rule


def _gives(rule: Rule, rows: Sequence[Row], programs: Sequence[int]) -> bool:
    return all(rule.at(row) == each for row, each in zip(rows, programs, strict=True))


def _products(axes: Sequence[str], hints: Hints) -> Iterator[tuple[Factor, ...]]:
    tiles: list[str | int] = [*sorted(hints.tiles), *sorted(hints.plain)]
    for size in range(1, _MOST_FACTORS + 1):
        for chosen in combinations(axes, size):
            if size > 1:
                yield from ((Factor(chosen, tile),) for tile in tiles)
            for given in product((None, *tiles), repeat=size):
                named = [tile for tile in given if tile is not None]
                if len(set(named)) == len(named):
                    yield tuple(Factor((a,), t) for a, t in zip(chosen, given, strict=True))


def _probes(rows: Sequence[Row], axes: Collection[str]) -> list[Row]:
    """Return other lengths of what varies, at the constexprs of every launch that was seen."""
    moving = [axis for axis in sorted(axes) if len({row[axis] for row in rows}) > 1]
    chance = random.Random(7)  # the same answer every time
    found: list[Row] = list(rows)
    settings = {tuple((n, v) for n, v in row.items() if n not in moving): row for row in rows}
    for row in list(settings.values())[:16]:
        for _ in range(_PROBES):
            lengths = {axis: _length(chance, [each[axis] for each in rows]) for axis in moving}
            found.append({**row, **lengths})
    return found


def _length(chance: random.Random, seen: Sequence[int]) -> int:
    longest = 8 * max(seen) + 4096
    return chance.randint(1, longest) if chance.random() < 0.7 else chance.randint(1, 64)
