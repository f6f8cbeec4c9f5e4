"""Proposes what the recipes make of the incumbent, and of the best variant so far."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import zip_longest

from retuned.contract import Definition, Solution, Workload
from retuned.lab.generators.devices import DeviceFacts
from retuned.lab.generators.priors import Priors, best_first
from retuned.lab.generators.recipes.input import RecipeResult, Situation
from retuned.lab.generators.recipes.recipes import RECIPES
from retuned.lab.generators.spaces import Tunable, require_definition
from retuned.ports import Finding

log = logging.getLogger(__name__)


class RecipeGenerator:
    """Applies every recipe, in turns; deterministic for a history.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    incumbent
        The variant in production.
    device
        Where variants are to run.
    structures
        Only these; empty means all, rewritten sources among them.
    priors
        Priors: of several changes, the one with the largest expected gain comes first.
    """

    name = "recipes"

    def __init__(
        self,
        tunable: Tunable,
        *,
        incumbent: Solution,
        device: DeviceFacts,
        structures: Sequence[str] = (),
        priors: Priors | None = None,
    ) -> None:
        self._tunable = tunable
        self._incumbent = incumbent
        self._device = device
        self._structures = frozenset(structures)
        self._priors = priors

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty where no recipe has a new one.

        Raises
        ------
        UsageError
            If this generator was made for another definition, or `workloads` has none of it.
        """
        require_definition(definition, self._tunable)
        taken = {self._incumbent.digest, *(finding.solution.digest for finding in history)}
        chosen: list[Solution] = []
        for base in self._bases(history):
            answers = self.answers(base, definition, workloads)
            # One of each before a second of any: they are different ideas.
            for row in zip_longest(*(answer.solutions for answer in answers.values())):
                for solution in self._ordered([each for each in row if each is not None]):
                    if self._new(solution, taken):
                        taken.add(solution.digest)
                        chosen.append(solution)
        return chosen[:count]

    def answers(
        self, solution: Solution, definition: Definition, workloads: Sequence[Workload]
    ) -> dict[str, RecipeResult]:
        """Return what each recipe says of a variant, by its name.

        Raises
        ------
        UsageError
            If `workloads` has none of the definition.
        """
        situation = Situation(
            solution=solution,
            definition=definition,
            workloads=workloads,
            tunable=self._tunable,
            device=self._device,
        )
        found = {}
        for name, recipe in RECIPES.items():
            found[name] = recipe(situation)
            log.debug("recipe %s on %s: %s", name, solution.name, found[name].because)
        return found

    def _bases(self, history: Sequence[Finding]) -> list[Solution]:
        """Return the incumbent and, where it is another, the best of what was timed."""
        timed = [finding for finding in history if finding.verdict.speedup is not None]
        best = max(timed, key=_lower, default=None)
        if best is None or _lower(best) <= 1.0:
            return [self._incumbent]
        return [best.solution, self._incumbent]

    def _ordered(self, solutions: Sequence[Solution]) -> list[Solution]:
        """Return them in the order of the priors; in the given order without priors."""
        places = best_first(self._priors, [(each.structure, each.params) for each in solutions])
        return [solutions[place] for place in places]

    def _new(self, solution: Solution, taken: set[str]) -> bool:
        allowed = not self._structures or solution.structure in self._structures
        return allowed and solution.digest not in taken


def _lower(finding: Finding) -> float:
    speedup = finding.verdict.speedup
    return speedup.lower if speedup is not None else 0.0
