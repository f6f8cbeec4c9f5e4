"""What a recipe looks at, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retuned.contract import Definition, Language, Solution, Workload
from retuned.errors import UsageError
from retuned.lab.generators.devices import DeviceFacts
from retuned.lab.generators.spaces import Params, SpaceLike, Tunable, dominant_axes
from retuned.runtime.core.grid import parse_grid
from retuned.runtime.schema import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A variant, what it is for, and what else there is."""

    solution: Solution
    """The variant to change: the incumbent, or the best so far."""
    definition: Definition
    """What it computes."""
    workloads: Sequence[Workload]
    """Weighted shapes; at least one."""
    tunable: Tunable
    """Structures that are known."""
    device: DeviceFacts
    """Where it is to run."""

    @property
    def space(self) -> SpaceLike | None:
        """The space that the variant is a point of; None if it is in no space."""
        return next((s for s in self.tunable.spaces if s.name == self.solution.structure), None)

    @property
    def axes(self) -> dict[str, int]:
        """Variable axes of the shape that moves most."""
        return dominant_axes(self.definition, self.workloads)

    @property
    def programs(self) -> int:
        """Programs of a launch at that shape, of the largest where there are several.

        0 where the variant has no grid or the grid cannot be computed.
        """
        return self.programs_of(self.solution)

    def programs_of(self, solution: Solution) -> int:
        """Return the same of another variant."""
        if solution.language is not Language.TRITON:
            return 0
        lengths = {**_integers(solution.params), **self.definition.lengths(self.axes)}
        try:
            return max(
                math.prod(parse_grid(step.grid, known).at(known))
                for step in solution.launches
                for known in ({**lengths, **_integers(step.params)},)
            )
        except Refused:
            return 0

    def variant(self, structure: str, params: Params) -> Solution | None:
        """Return the variant at a point; None if the point does not exist, or is this one."""
        try:
            found = self.tunable.solution(structure, params)
        except UsageError:
            return None
        return None if found.digest == self.solution.digest else found

    def changed(self, changes: Mapping[str, int | str]) -> Solution | None:
        """Return this variant with other parameters; None if that point does not exist."""
        if self.space is None:
            return None
        return self.variant(self.space.name, {**self.solution.params, **changes})

    def starts(self, space: SpaceLike) -> list[Solution]:
        """Return all guesses of another structure, the best first."""
        found = [self.variant(space.name, params) for params in space.starts(self.axes)]
        return [each for each in found if each is not None]

    def start(self, space: SpaceLike) -> Solution | None:
        """Return the best guess of another structure; None if it has none here."""
        for params in space.starts(self.axes):
            found = self.variant(space.name, params)
            if found is not None:
                return found
        return None


def _integers(params: Mapping[str, int | str]) -> dict[str, int]:
    return {name: value for name, value in params.items() if isinstance(value, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeResult:
    """What a recipe makes of a situation."""

    solutions: tuple[Solution, ...]
    """Variants that are worth a try; empty where the recipe does not apply."""
    because: str
    """Why they are, or why there are none."""


Recipe = Callable[[Situation], RecipeResult]
"""A transformation with a name that a person knows."""


def none(because: str) -> RecipeResult:
    """Answer that the recipe does not apply."""
    return RecipeResult(solutions=(), because=because)


def some(solutions: Sequence[Solution | None], *, because: str, otherwise: str) -> RecipeResult:
    """Answer with those variants that exist, each once; `otherwise` is why there are none."""
    found = {each.digest: each for each in solutions if each is not None}
    if not found:
        return none(otherwise)
    return RecipeResult(solutions=tuple(found.values()), because=because)
