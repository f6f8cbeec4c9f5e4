"""What a generator is made from, and the generators that need nothing else.

A factory takes a `GeneratorInput` and returns a generator. `retuned.experiment` lists all factories
by name, and has those of the generators that need an adapter, such as an endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retuned.contract import Solution
from retuned.lab.generators.devices import DeviceFacts
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.recipes import RecipeGenerator
from retuned.lab.generators.search import SearchGenerator
from retuned.lab.generators.spaces import Tunable
from retuned.lab.generators.transfer import Earlier, PortingGenerator
from retuned.ports import Finding, Generator
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorInput:
    """One plan on one machine, as a generator sees it."""

    plan: ExperimentPlan
    """The experiment."""
    tunable: Tunable
    """The definition with its spaces, in the incumbent's language. Its incumbent is the plan's; if
    that came without a space, one is inferred."""
    incumbent: Solution
    """The variant in production."""
    device: DeviceFacts
    """Where variants run."""
    cores: int
    """Cores a launch may use."""
    seed: int
    """Follows from the plan: an interrupted plan, run again, proposes the same again."""
    earlier: tuple[Earlier, ...] = ()
    """What other experiments found on this operator, here and elsewhere, failures among them."""
    priors: Priors | None = None
    """Priors from them, before anything is tried; they only order."""
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds that the search for variants has left, asked at any time."""

    @property
    def known(self) -> tuple[Finding, ...]:
        """Earlier findings that hold here: same kernel, shapes, incumbent and environment."""
        return tuple(each.finding for each in self.earlier if self._holds(each))

    @property
    def foreign(self) -> tuple[Earlier, ...]:
        """Earlier findings that are only hints here."""
        return tuple(each for each in self.earlier if not self._holds(each))

    def _holds(self, each: Earlier) -> bool:
        """Whether a measurement needs no repetition; a winner is always measured again."""
        shapes = [workload.axes for workload in each.workloads]
        verdict = each.finding.verdict
        return (
            each.finding.solution.definition == self.plan.definition
            and verdict.incumbent == self.plan.incumbent
            and verdict.status is not Status.PROMOTE
            and each.environment == self.plan.environment
            and all(workload.axes in shapes for workload in self.plan.workloads)
        )


Make = Callable[[GeneratorInput], Generator]
"""Makes a generator for an occasion."""


def make_search(occasion: GeneratorInput) -> Generator:
    """Return the parameter search over the plan's structures, all of them where it names none."""
    return SearchGenerator(
        occasion.tunable,
        cores=occasion.cores,
        seed=occasion.seed,
        structures=occasion.plan.structures,
        earlier=occasion.known,
        priors=occasion.priors,
    )


def make_recipes(occasion: GeneratorInput) -> Generator:
    """Return the recipes, applied to the incumbent and to the best so far."""
    return RecipeGenerator(
        occasion.tunable,
        incumbent=occasion.incumbent,
        device=occasion.device,
        structures=occasion.plan.structures,
        priors=occasion.priors,
    )


def make_porting(occasion: GeneratorInput) -> Generator:
    """Return winners from elsewhere."""
    return PortingGenerator(
        occasion.tunable,
        cores=occasion.cores,
        device=occasion.device,
        earlier=occasion.foreign,
        structures=occasion.plan.structures,
    )


SELF_CONTAINED: Mapping[str, Make] = {
    "search": make_search,
    "recipes": make_recipes,
    "porting": make_porting,
}
"""Generators that need nothing but the occasion."""
