"""What a generator is made from, and the generators that need nothing else.

A factory gets an `Occasion` and returns a generator. Generators that need an adapter, such as an
endpoint, have their factory in `retuned.experiment`, where all of them are listed by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retuned.contract import Solution
from retuned.lab.generators.random import RandomGenerator
from retuned.lab.generators.search import SearchGenerator
from retuned.lab.generators.spaces import Tunable
from retuned.ports import Generator
from retuned.stages.experiment import ExperimentPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """One plan on one machine, as a generator sees it."""

    plan: ExperimentPlan
    """What is asked for."""
    tunable: Tunable
    """The definition with its spaces, in the incumbent's language."""
    incumbent: Solution
    """The variant in production; it need not be the tunable's own."""
    cores: int
    """Cores a launch may use."""
    seed: int
    """Follows from the plan: an interrupted plan, run again, proposes the same again."""


Make = Callable[[Occasion], Generator]
"""Makes a generator for an occasion."""


def make_search(occasion: Occasion) -> Generator:
    """Return the parameter search over the plan's structures, all of them where it names none."""
    return SearchGenerator(
        occasion.tunable,
        cores=occasion.cores,
        seed=occasion.seed,
        structures=occasion.plan.structures,
    )


def make_random(occasion: Occasion) -> Generator:
    """Return chance over the plan's structures."""
    return RandomGenerator(
        occasion.tunable,
        cores=occasion.cores,
        seed=occasion.seed,
        structures=occasion.plan.structures,
    )


SELF_CONTAINED: Mapping[str, Make] = {"search": make_search, "random": make_random}
"""Generators that need nothing but the occasion."""
