"""Negative results, used: what failed candidates say of points that nobody has tried.

A point that ran out of shared memory or registers rules out every point of its structure that is
nowhere smaller. A structure of which nothing came out right is left alone. What was merely slow is
the surrogate's business.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from retuned.lab.generators.spaces import Grid, Point
from retuned.ports import Finding
from retuned.stages.hypothesis import hopeless, tally
from retuned.stages.hypothesis.lessons import STARVED

_SIZES = re.compile(r"(BLOCK|TILE|CHUNK|ROWS|XROWS|UNROLL|STAGE|STAGES|P|num_stages)(_[A-Z0-9]+)?")
"""Parameters that say how much is held at a time; more of it never needs less."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """What must not be tried."""

    hopeless: frozenset[str] = frozenset()
    """Structures of which nothing worked."""
    ceilings: tuple[Point, ...] = ()
    """Points that wanted more than there is."""
    _sizes: dict[str, tuple[bool, ...]] = field(default_factory=dict)

    def allow(self, point: Point) -> bool:
        """Whether nothing that is known speaks against the point."""
        if point.structure in self.hopeless:
            return False
        return not any(self._above(point, ceiling) for ceiling in self.ceilings)

    def _above(self, point: Point, ceiling: Point) -> bool:
        """Whether a point holds at least as much as one that held too much."""
        if point.structure != ceiling.structure:
            return False
        sizes = self._sizes[point.structure]
        return all(
            mine >= most if size else mine == most
            for mine, most, size in zip(point.places, ceiling.places, sizes, strict=True)
        )


def learn(history: Sequence[Finding], grid: Grid) -> Lessons:
    """Return what the findings teach; the incumbent's structure works and is never hopeless."""
    reasons: dict[str, list[str]] = defaultdict(list)
    ceilings = []
    for finding in history:
        reason = str(finding.verdict.reason)
        reasons[finding.solution.structure].append(reason)
        point = grid.point(finding.solution.structure, finding.solution.params)
        if point is not None and reason in STARVED:
            ceilings.append(point)
    outcomes = {structure: tally(codes) for structure, codes in reasons.items()}
    known = frozenset(hopeless(outcomes)) - {grid.tunable.incumbent.structure}
    sizes = {
        structure: tuple(
            _SIZES.fullmatch(name) is not None and _rising(choices)
            for name, choices in space.params.items()
        )
        for structure, space in grid.spaces.items()
    }
    return Lessons(known, tuple(ceilings), sizes)


def _rising(choices: Sequence[int | str]) -> bool:
    """Whether a later choice is a larger number."""
    numbers = [choice for choice in choices if isinstance(choice, int)]
    return len(numbers) == len(choices) and numbers == sorted(numbers)
