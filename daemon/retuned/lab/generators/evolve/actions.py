"""What the next request for a variant is about: a repair, a change of a parent, a fresh start.

A pure decision over what was born so far and what the lab found; the seed only chooses parents.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retuned.contract import Digest, Solution
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.edits import AnswerRefused
from retuned.lab.generators.evolve.evaluator import Assessment, Outcome
from retuned.lab.generators.evolve.population import (
    Member,
    Population,
    choose_parent,
    choose_partners,
)

_PARTNERS = 2


class Action(StrEnum):
    """Kinds of requests for a variant."""

    CHANGE = "change"
    """Make a parent faster."""
    REPAIR = "repair"
    """Make a broken one right."""
    FRESH = "fresh"
    """Write a first one from the definition's reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """One answered request for a variant."""

    step: int
    """Its number, from 0."""
    island: int
    """Population it was asked for."""
    action: Action
    """What was asked."""
    repairs: int | None = None
    """Step of the birth that it repairs."""
    depth: int = 0
    """How many repairs lie before it."""
    base: Solution | None = None
    """What it was made from."""
    solution: Solution | None = None
    """What came; None where the answer was refused."""
    refused: AnswerRefused | None = None
    """Why the answer was refused."""
    answer: str = ""
    """The answer's text where it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next request for a variant."""

    number: int
    """Its number, from 0."""
    island: int
    """Population it is for."""
    generation: int
    """Of the island, from 0."""
    action: Action
    """What the model is to do."""
    parent: Member | None = None
    """What is changed; None for a fresh start, and for a repair of what was never measured."""
    broken: Birth | None = None
    """What is repaired."""
    failure: Assessment | None = None
    """What the lab said of it; None where the answer itself was refused."""
    partners: tuple[Member, ...] = ()
    """Others to learn from."""

    @property
    def depth(self) -> int:
        """How many repairs lie before it, this one counted."""
        return self.broken.depth + 1 if self.broken is not None else 0


def next_step(
    population: Population, births: Sequence[Birth], *, rules: EvolveRules, seed: int
) -> Step | None:
    """Return what to ask for next; None when all generations were born.

    What broke is repaired first, newest first: it is the cheapest way to a variant that is right.
    Then islands take turns.
    """
    number = max((birth.step for birth in births), default=-1) + 1
    if number >= rules.generations * rules.islands:
        return None
    island, generation = number % rules.islands, number // rules.islands
    rng = random.Random(f"{seed}:{number}")  # a string seeds alike in every process
    broken = _to_repair(population, births, rules)
    if broken is not None:
        parent = population.members.get(broken.base.digest) if broken.base is not None else None
        return Step(
            number=number,
            island=broken.island,
            generation=generation,
            action=Action.REPAIR,
            parent=parent,
            broken=broken,
            failure=(
                population.assessed.get(broken.solution.digest)
                if broken.solution is not None
                else None
            ),
        )
    parent = choose_parent(population.islands[island], rng)
    return Step(
        number=number,
        island=island,
        generation=generation,
        action=Action.FRESH if parent is None else Action.CHANGE,
        parent=parent,
        partners=choose_partners(population, parent, rng, count=_PARTNERS),
    )


def _to_repair(population: Population, births: Sequence[Birth], rules: EvolveRules) -> Birth | None:
    tried = {birth.repairs for birth in births if birth.repairs is not None}
    for birth in reversed(births):
        if birth.step not in tried and birth.depth < rules.repairs and _broken(population, birth):
            return birth
    return None


def _broken(population: Population, birth: Birth) -> bool:
    if birth.solution is None:
        return birth.refused is not None and birth.refused.reason not in _NOT_WORTH_REPAIR
    assessed = population.assessed.get(birth.solution.digest)
    return assessed is not None and assessed.outcome is Outcome.BROKEN


def purpose_of(step: Step) -> Mapping[str, int | str]:
    """Return what a request carries, so that the answer can be found and understood again."""
    base = base_of(step)
    return {
        "role": "generator",
        "step": step.number,
        "island": step.island,
        "action": str(step.action),
        "repairs": step.broken.step if step.broken is not None else -1,
        "depth": step.depth,
        "base": base.digest if base is not None else "none",
    }


def base_of(step: Step) -> Solution | None:
    """Return what an edit would edit; None on a fresh start."""
    if step.broken is not None:
        return step.broken.solution or step.broken.base
    return step.parent.solution if step.parent is not None else None


_NOT_WORTH_REPAIR = frozenset({"too-long", "same-as-known", "base-lost"})
"""What goes wrong here is not in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRequest:
    """A request for a variant, as it was asked."""

    step: int
    """Its number, from 0."""
    island: int
    """Population it was for."""
    action: Action
    """What was asked."""
    repairs: int | None
    """Step of the birth that it repairs."""
    depth: int
    """How many repairs lie before it, this one counted."""
    base: Digest | None
    """What an edit edits."""


def read_purpose(purpose: Mapping[str, int | str]) -> VariantRequest | None:
    """Read what `purpose_of` wrote; None for other roles, and for what cannot be read.

    Examples
    --------
    >>> step = Step(number=3, island=1, generation=1, action=Action.FRESH)
    >>> read_purpose(purpose_of(step)).step
    3
    >>> read_purpose({"role": "reflector"}) is None
    True
    """
    if purpose.get("role") != "generator":
        return None
    numbers = [purpose.get(name) for name in ("step", "island", "repairs", "depth")]
    action, base = purpose.get("action"), purpose.get("base")
    if not isinstance(base, str) or action not in tuple(Action):
        return None
    step, island, repairs, depth = (n if isinstance(n, int) else -2 for n in numbers)
    if step < 0 or island < 0 or repairs < -1 or depth < 0:
        return None
    return VariantRequest(
        step=step,
        island=island,
        action=Action(str(action)),
        repairs=repairs if repairs >= 0 else None,
        depth=depth,
        base=None if base == "none" else base,
    )
