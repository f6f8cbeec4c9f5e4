"""What generators need to know of a kernel: structures, parameters, and what was tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retuned.contract import Definition, Solution, Workload
from retuned.errors import UsageError
from retuned.ports import Finding

Params = Mapping[str, int | str]
THREADS = "THREADS"
"""Parameter that counts the parts of a launch; more than there are cores is never worth a try."""


class SpaceLike(Protocol):
    """One source structure and the parameters it may be compiled with."""

    @property
    def name(self) -> str:
        """Structure."""
        ...

    @property
    def params(self) -> Mapping[str, tuple[int | str, ...]]:
        """Choices of each parameter, in an order in which neighbours behave alike."""
        ...

    @property
    def starts(self) -> Callable[[Mapping[str, int]], tuple[Params, ...]]:
        """Points worth trying first at given variable axes, best guess first; may be empty."""
        ...

    @property
    def rank(self) -> Callable[[Mapping[str, int]], int]:
        """Place among the structures at given variable axes; 0 is tried first."""
        ...

    def constraints(self, params: Params, definition: Definition) -> bool:
        """Whether the point can be built."""
        ...


class Tunable(Protocol):
    """A definition with its spaces; entries of the catalog satisfy it."""

    @property
    def definition(self) -> Definition:
        """What is computed."""
        ...

    @property
    def spaces(self) -> Sequence[SpaceLike]:
        """Structures that implement it."""
        ...

    @property
    def incumbent(self) -> Solution:
        """Variant that the others are measured against."""
        ...

    def solution(self, structure: str, params: Params) -> Solution:
        """Return the variant at one point."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One variant: indices into its structure's choices, so that neighbours are arithmetic."""

    structure: str
    """Structure."""
    places: tuple[int, ...]
    """Index of each parameter's value among its choices."""


class Grid:
    """Every point of a kernel that this machine can use.

    Parameters
    ----------
    tunable
        The kernel.
    cores
        Cores a launch may use.
    structures
        Only these; empty means all.
    """

    def __init__(self, tunable: Tunable, *, cores: int, structures: Sequence[str] = ()) -> None:
        known = {space.name: space for space in tunable.spaces}
        unknown = sorted(set(structures) - known.keys())
        if unknown:
            raise UsageError(
                f"{tunable.definition.name} has no structures {unknown}; it has {sorted(known)}"
            )
        self.tunable = tunable
        self.spaces = {n: s for n, s in known.items() if not structures or n in structures}
        self.points = frozenset(
            point
            for name, space in self.spaces.items()
            for point in _points(name, space, tunable.definition, cores)
        )

    def params(self, point: Point) -> dict[str, int | str]:
        """Return a point's parameters by name."""
        choices = self.spaces[point.structure].params
        return {n: c[i] for (n, c), i in zip(choices.items(), point.places, strict=True)}

    def solution(self, point: Point) -> Solution:
        """Return the variant at a point."""
        return self.tunable.solution(point.structure, self.params(point))

    def point(self, structure: str, params: Params) -> Point | None:
        """Return where a variant lies; None if it is in no space of this machine."""
        space = self.spaces.get(structure)
        if space is None or params.keys() != space.params.keys():
            return None
        if any(params[name] not in choices for name, choices in space.params.items()):
            return None
        places = tuple(choices.index(params[name]) for name, choices in space.params.items())
        found = Point(structure, places)
        return found if found in self.points else None

    def neighbours(self, point: Point) -> list[Point]:
        """Points with another value of one parameter, or one step up in one and down in another."""
        sizes = [len(choices) for choices in self.spaces[point.structure].params.values()]
        steps: list[dict[int, int]] = [
            {axis: place - point.places[axis]}
            for axis, size in enumerate(sizes)
            for place in range(size)
            if place != point.places[axis]
        ]
        steps += [{up: 1, down: -1} for up, down in itertools.permutations(range(len(sizes)), 2)]
        moved = (
            Point(point.structure, tuple(p + step.get(i, 0) for i, p in enumerate(point.places)))
            for step in steps
        )
        return [candidate for candidate in moved if candidate in self.points]

    def starts(self, axes: Mapping[str, int]) -> list[list[Point]]:
        """Return first guesses: one list per structure, structures by rank."""
        ranked = sorted(self.spaces.values(), key=lambda space: (space.rank(axes), space.name))
        guesses = []
        for space in ranked:
            found = [self.point(space.name, params) for params in space.starts(axes)]
            usable = [point for point in found if point is not None]
            guesses.append(usable or self._middle(space.name))
        return guesses

    def _middle(self, structure: str) -> list[Point]:
        """Return the valid point nearest the middle of all parameters; empty without one."""
        choices = self.spaces[structure].params.values()
        middle = [(len(c) - 1) / 2 for c in choices]
        own = [point for point in self.points if point.structure == structure]
        own.sort(key=lambda p: (math.dist(p.places, middle), p))
        return own[:1]


def _points(name: str, space: SpaceLike, definition: Definition, cores: int) -> list[Point]:
    choices = list(space.params.values())
    found = []
    for places in itertools.product(*(range(len(c)) for c in choices)):
        values = {n: c[i] for (n, c), i in zip(space.params.items(), places, strict=True)}
        if int(values.get(THREADS, 1)) <= cores and space.constraints(values, definition):
            found.append(Point(name, places))
    return found


def dominant_axes(definition: Definition, workloads: Sequence[Workload]) -> dict[str, int]:
    """Lengths of the workload that moves most elements a second; guesses are made for this one.

    Raises
    ------
    UsageError
        If `workloads` has none of this definition.
    """
    own = [workload for workload in workloads if workload.definition == definition.name]
    if not own:
        raise UsageError(f"no workload of {definition.name} to propose variants for")
    heaviest = max(own, key=lambda w: (w.weight * math.prod(w.axes.values()), str(w.axes)))
    return dict(heaviest.axes)


def merit(finding: Finding) -> float | None:
    """Incumbent's time over the candidate's, weighted by the profile; None if it was never timed.

    Ratios, not times: they are paired with the incumbent, so that a machine that slows down between
    two candidates does not decide between them.
    """
    verdict = finding.verdict
    if verdict.shapes:
        weights = [shape.weight for shape in verdict.shapes]
        if not any(weights):
            weights = [1.0] * len(weights)
        before = sum(w * s.incumbent_us for w, s in zip(weights, verdict.shapes, strict=True))
        after = sum(w * s.candidate_us for w, s in zip(weights, verdict.shapes, strict=True))
        return before / after
    return verdict.speedup.point if verdict.speedup is not None else None


def require_definition(definition: Definition, tunable: Tunable) -> None:
    """Refuse a definition that the generator was not made for.

    Raises
    ------
    UsageError
        If it is another one.
    """
    if definition.name != tunable.definition.name:
        raise UsageError(f"this generator knows {tunable.definition.name}, not {definition.name}")
