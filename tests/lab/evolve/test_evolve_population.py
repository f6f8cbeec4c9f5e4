"""Islands: niches, migration, parents; all rebuilt from findings alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.evolve.evolve_world import finding, incumbent

from retuned.contract import Language, Solution
from retuned.lab.generators.evolve.actions import Action, Birth, next_step, purpose_of, read_purpose
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.lineage import Lineage
from retuned.lab.generators.evolve.population import (
    Population,
    choose_parent,
    choose_partners,
    populate,
)
from retuned.ports import Finding
from retuned.stages.verdict import Reason

ZERO = "sha256:" + "0" * 64
RULES = EvolveRules(islands=3, generations=4, migrate_every=2)


def born(number: int, island: int, *, loops: int = 1) -> Solution:
    text = f"void k{number}() {{ {'for (;;) a(); ' * loops} }}\n"
    lineage = Lineage(island=island, step=number, parent=None, prompt=ZERO, model="m")
    return incumbent(text).model_copy(update={"author": lineage.author(), "prompt": ZERO})


def islands(*findings: Finding, rules: EvolveRules = RULES) -> Population:
    return populate(findings, incumbent=incumbent(), language=Language.CPU_CPP, rules=rules)


def test_at_the_start_every_island_has_the_incumbent() -> None:
    found = islands()
    assert [len(island.archive) for island in found.islands] == [1, 1, 1]
    assert found.best() is not None


def test_a_niche_keeps_the_fastest_and_another_structure_keeps_its_own() -> None:
    slow = finding(born(0, 0), ratio=1.2)
    quick = finding(born(1, 0), ratio=1.3)
    other = finding(born(2, 0, loops=6), ratio=0.6)
    names = {m.solution.digest for m in islands(slow, quick, other).islands[0].ranked()}
    assert quick.solution.digest in names
    assert other.solution.digest in names
    assert slow.solution.digest not in names


def test_variants_live_where_they_were_born_until_the_best_move_on() -> None:
    first = finding(born(0, 0), ratio=3.0)
    rest = [finding(born(n, n % 3, loops=n), ratio=1.1) for n in range(1, 6)]

    def has(found: Population, island: int) -> bool:
        return first.solution.digest in {
            m.solution.digest for m in found.islands[island].archive.values()
        }

    before = islands(first, *rest[:4])
    assert [has(before, n) for n in range(3)] == [True, False, False]
    after = islands(first, *rest)  # six births: two generations of three islands
    assert [has(after, n) for n in range(3)] == [True, True, False]


def test_other_languages_and_failures_are_no_members() -> None:
    triton = finding(incumbent("# x", Language.TRITON), ratio=9.0)
    broken = finding(born(0, 1), reason=Reason.WRONG_OUTPUT, detail="d")
    found = islands(triton, broken)
    assert len(found.members) == 1
    assert [len(island.failures) for island in found.islands] == [0, 1, 0]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 5),
            st.one_of(st.none(), st.floats(0.01, 100.0)),
        ),
        max_size=25,
    ),
    st.integers(0, 99),
)
def test_any_history_has_parents_and_a_next_step(
    told: list[tuple[int, int, float | None]], seed: int
) -> None:
    findings = [
        finding(born(n, island, loops=loops), ratio=ratio, reason=Reason.LOST_SEARCH)
        for n, (island, loops, ratio) in enumerate(told)
    ]
    population = islands(*findings)
    again = islands(*findings)
    for island, same in zip(population.islands, again.islands, strict=True):
        ranked = island.ranked()
        assert [m.merit for m in ranked] == sorted((m.merit for m in ranked), reverse=True)
        assert choose_parent(island, random.Random(seed)) == choose_parent(
            same, random.Random(seed)
        )
    step = next_step(population, [], rules=RULES, seed=seed)
    assert step == next_step(again, [], rules=RULES, seed=seed)
    assert step is not None
    assert step.action is Action.CHANGE
    asked = read_purpose(purpose_of(step))
    assert asked is not None
    assert asked.base == (step.parent.solution.digest if step.parent else None)


def test_partners_are_others_and_of_another_kind_first() -> None:
    same = finding(born(0, 0), ratio=1.2)
    kinds = [finding(born(n, 0, loops=2 * n), ratio=1.1) for n in range(1, 4)]
    population = islands(same, *kinds)
    parent = population.members[incumbent().digest]
    partners = choose_partners(population, parent, random.Random(1), count=2)
    assert len(partners) == 2
    assert parent not in partners
    assert choose_partners(islands(), parent, random.Random(1), count=2) == ()


def test_evolution_ends_with_its_generations() -> None:
    births = [
        Birth(step=n, island=n % 3, action=Action.CHANGE, solution=born(n, n % 3))
        for n in range(12)
    ]
    assert next_step(islands(), births[:-1], rules=RULES, seed=0) is not None
    assert next_step(islands(), births, rules=RULES, seed=0) is None


@pytest.mark.parametrize(
    "purpose",
    [
        {},
        {"role": "generator"},
        {"role": "generator", "step": -1, "island": 0, "repairs": -1, "depth": 0, "base": "none"},
        {"role": "generator", "step": "1", "island": 0, "repairs": -1, "depth": 0, "base": "none"},
        {
            "role": "generator",
            "step": 1,
            "island": 0,
            "repairs": -1,
            "depth": 0,
            "base": "none",
            "action": "obey",
        },
    ],
)
def test_a_purpose_that_makes_no_sense_is_nobodys(purpose: dict[str, int | str]) -> None:
    assert read_purpose(purpose) is None
