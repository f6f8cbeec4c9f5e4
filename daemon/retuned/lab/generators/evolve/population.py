"""Islands with an archive each, rebuilt from the history: who lives where, who may have children.

Nothing is kept between calls: the same findings in the same order give the same islands, so an
experiment that was killed goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retuned.contract import Digest, Language, Solution
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.evaluator import Assessment, Outcome, assess
from retuned.lab.generators.evolve.features import Cell, Features, measure
from retuned.lab.generators.evolve.lineage import Lineage, lineage_of
from retuned.ports import Finding

_BEST, _RANKED = 0.5, 0.8
"""Chances: the island's best, then by rank, then any niche."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A variant that was right and measured, or the one everything began with."""

    solution: Solution
    """The variant."""
    merit: float
    """Incumbent's time over its own; the incumbent has 1."""
    features: Features
    """Measured from the source."""
    finding: Finding | None = None
    """What the lab found; None for the incumbent."""


@dataclass(slots=True, kw_only=True)
class Island:
    """One population: the best of each niche."""

    archive: dict[Cell, Member] = field(default_factory=dict)
    """By niche."""
    failures: list[tuple[Solution, Assessment]] = field(default_factory=list)
    """Broken ones born here, oldest first."""

    def admit(self, member: Member) -> None:
        """Take a variant in if its niche has none that is as good."""
        cell = member.features.cell(member.merit)
        rival = self.archive.get(cell)
        if rival is None or member.merit > rival.merit:
            self.archive[cell] = member

    def ranked(self) -> list[Member]:
        """Return the archive, best first."""
        return sorted(self.archive.values(), key=lambda m: (-m.merit, m.solution.digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """All islands."""

    islands: tuple[Island, ...]
    """By number."""
    members: Mapping[Digest, Member]
    """Every measured variant of this language, and the incumbent."""
    assessed: Mapping[Digest, Assessment]
    """Every finding."""

    def best(self) -> Member | None:
        """Return the fastest of all; None where nothing was measured."""
        found = sorted(self.members.values(), key=lambda m: (-m.merit, m.solution.digest))
        return found[0] if found else None


def populate(
    history: Sequence[Finding],
    *,
    incumbent: Solution | None,
    language: Language,
    rules: EvolveRules,
) -> Population:
    """Rebuild the islands.

    Parameters
    ----------
    history
        Findings in the order in which they came. Those of other generators live too: each on the
        island that its digest names.
    incumbent
        What islands begin with; None where they begin with the reference alone.
    language
        Findings in other languages are left aside.
    rules
        How many islands, and when the best of them move.
    """
    islands = tuple(Island() for _ in range(rules.islands))
    members: dict[Digest, Member] = {}
    assessed: dict[Digest, Assessment] = {}
    if incumbent is not None:
        first = Member(solution=incumbent, merit=1.0, features=measure(incumbent))
        members[incumbent.digest] = first
        for number, island in enumerate(islands):
            if not starts_bare(number, rules):
                island.admit(first)
    born = 0
    for finding in history:
        solution = finding.solution
        if solution.language is not language:
            continue
        assessment = assess(finding)
        assessed[solution.digest] = assessment
        lineage = lineage_of(solution)
        island = islands[home_of(solution, lineage, rules)]
        if assessment.outcome is Outcome.BROKEN and lineage is not None:
            island.failures.append((solution, assessment))
        if assessment.merit is not None:
            member = Member(
                solution=solution,
                merit=assessment.merit,
                features=measure(solution),
                finding=finding,
            )
            members[solution.digest] = member
            island.admit(member)
        born += lineage is not None
        if lineage is not None and born % (rules.migrate_every * rules.islands) == 0:
            _migrate(islands)
    return Population(islands=islands, members=members, assessed=assessed)


def starts_bare(island: int, rules: EvolveRules) -> bool:
    """Whether an island begins with the reference text and no source."""
    if rules.start == "both":
        return rules.islands > 1 and island == rules.islands - 1
    return rules.start == "reference"


def home_of(solution: Solution, lineage: Lineage | None, rules: EvolveRules) -> int:
    """Return the island a variant lives on."""
    if lineage is not None:
        return lineage.island % rules.islands
    return int(solution.digest[-8:], 16) % rules.islands


def choose_parent(island: Island, rng: random.Random) -> Member | None:
    """Return the parent of the next child; None on an empty island.

    Half of the time the best; else by rank, each half as likely as the one before; else any niche,
    so that an unusual structure can also become fast.
    """
    ranked = island.ranked()
    if not ranked:
        return None
    draw = rng.random()
    if draw < _BEST:
        return ranked[0]
    if draw < _RANKED:
        weights = [0.5**place for place in range(len(ranked))]
        return rng.choices(ranked, weights=weights)[0]
    return rng.choice(ranked)


def choose_partners(
    population: Population, parent: Member | None, rng: random.Random, *, count: int
) -> tuple[Member, ...]:
    """Return other variants to show beside the parent: of another structure first, best first."""
    taken = {parent.solution.digest} if parent is not None else set()
    own = parent.features.cell(None) if parent is not None else None
    others = [m for digest, m in population.members.items() if digest not in taken]
    others.sort(key=lambda m: (m.features.cell(None) == own, -m.merit, m.solution.digest))
    pool = others[: 2 * count]
    return tuple(sorted(rng.sample(pool, min(count, len(pool))), key=lambda m: -m.merit))


def _migrate(islands: tuple[Island, ...]) -> None:
    """Copy the best of each island to the next one, all at once."""
    if len(islands) < 2:
        return
    bests = [island.ranked()[:1] for island in islands]
    for number, best in enumerate(bests):
        for member in best:
            islands[(number + 1) % len(islands)].admit(member)
