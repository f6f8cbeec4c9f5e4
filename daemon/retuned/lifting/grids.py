"""Grid rules, inferred from observed grids, lengths and constexprs.

A rule is an integer times a product; a factor is an axis, or axes divided by a tile rounding up.
Every rule that fits every launch is a candidate. If two candidates differ at other lengths, more
launches are needed. If they differ only in the tile they name, the source decides, by which tile it
compares with which length.
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
    """A product of axes, divided by a tile rounding up if there is one."""

    axes: tuple[str, ...]
    tile: str | int | None = None

    def at(self, row: Row) -> int:
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
    times: int
    factors: tuple[Factor, ...]

    def at(self, row: Row) -> int:
        return self.times * prod(factor.at(row) for factor in self.factors)

    @property
    def tiles(self) -> frozenset[str]:
        return frozenset(f.tile for f in self.factors if isinstance(f.tile, str))

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            (axis, f.tile) for f in self.factors if isinstance(f.tile, str) for axis in f.axes
        )

    @property
    def weight(self) -> tuple[int, int, str]:
        size = sum(len(factor.axes) + (factor.tile is not None) for factor in self.factors)
        return size, self.times, str(self)

    def __str__(self) -> str:
        parts = [str(factor) for factor in self.factors]
        if self.times != 1 or not parts:
            parts.insert(0, str(self.times))
        return " * ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Facts of one dimension from the kernel's source and the caller's text."""

    placed: bool = True
    """Whether the program id is read; if not, all programs do the same work."""
    tiles: frozenset[str] = frozenset()
    """Constexprs multiplied by the program id: the only ones a rule may name."""
    plain: frozenset[int] = frozenset()
    pairs: frozenset[tuple[str, str]] = frozenset()
    named: frozenset[str] | None = None
    """Constexprs that the caller's rule reads; None if its text is unknown."""


def rule_of(
    rows: Sequence[Row], programs: Sequence[int], *, axes: Collection[str], hints: Hints
) -> Rule:
    """Infer the rule of one dimension.

    `rows` holds axes and integer constexprs per launch, `programs` the number of programs per
    launch. `axes` are the names of the axes among them.

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
        raise NotLifted("grid-unknown", detail=f"no rule matches the grids {told}")
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
    """Choose among rules that agree at the observed constexprs."""
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
    """Return other lengths of the variable axes, at the constexprs of every observed launch."""
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
