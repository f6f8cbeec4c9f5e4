"""What earlier experiments say about the next one: shrunken, dated, bounded, never a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from benchmarks.search_sim.replay import finding as simulated
from benchmarks.search_sim.replay import replay
from benchmarks.search_sim.siblings import inverted, priors_from, sibling
from benchmarks.search_sim.surfaces import Surface, synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from retuned.contract import Language, Solution, SourceFile, digest_of
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.prior_fit import Past, PastTurn, learn_priors
from retuned.lab.generators.priors import (
    MOST_POINTS,
    MOST_STRUCTURES,
    Expectation,
    Priors,
    best_first,
)
from retuned.lab.generators.search_heuristics import GUESSES, LATE
from retuned.ports import Finding
from retuned.stages.experiment import Turn, TurnOutcome
from retuned.stages.verdict import Reason, Status, Verdict

HERE, BEFORE, THERE = (digest_of(name) for name in ("here", "old driver", "another device"))


def solution(structure: str = "rows", **params: int | str) -> Solution:
    return Solution(
        name="k",
        definition="linear",
        language=Language.CPU_CPP,
        entry="k",
        sources=(SourceFile(path="k.cpp", content="none"),),
        structure=structure,
        params=params,
    )


INCUMBENT = solution("incumbent")


def timed(speedup: float, structure: str = "rows", **params: int | str) -> Finding:
    return simulated(solution(structure, **params), INCUMBENT, 100.0 / speedup, base_us=100.0)


def failed(reason: Reason, structure: str = "rows", **params: int | str) -> Finding:
    candidate = solution(structure, **params)
    verdict = Verdict(
        status=Status.REJECT,
        reason=reason,
        gate="G2",
        candidate=candidate.digest,
        incumbent=INCUMBENT.digest,
    )
    return Finding(solution=candidate, verdict=verdict, seconds=1.0)


def past(found: Finding, **changed: object) -> Past:
    usual = Past(finding=found, experiment="e", environment=HERE, arch="x86", age_days=0.0)
    return replace(usual, **changed)  # type: ignore[arg-type]


def learn(*found: Past, turns: tuple[PastTurn, ...] = ()) -> Priors:
    return learn_priors(
        found, family="linear", language="cpu_cpp", environment=HERE, arch="x86", turns=turns
    )


def test_nothing_known_believes_nothing_and_orders_nothing() -> None:
    priors = learn()
    assert not priors.known
    assert Expectation(priors).mean("rows", {"B": 1}) == 0.0
    assert best_first(priors, [("b", {}), ("a", {})]) == [0, 1]


def test_one_lucky_measurement_moves_less_than_many() -> None:
    one = learn(past(timed(2.0, B=1)))
    many = learn(*(past(timed(2.0, B=1)) for _ in range(20)))
    (first,), (last,) = one.structures, many.structures
    assert 0.0 < first.gain < last.gain < math.log(2.0)
    assert first.outcomes.tried == 1
    assert last.outcomes.tried == 20


def test_the_better_value_of_a_parameter_is_expected_to_be_better_at_points_never_tried() -> None:
    found = [timed(1.0 + 0.5 * (b == 2) + 0.2 * c, B=b, C=c) for b in (1, 2) for c in (0, 1)]
    priors = learn(*(past(each) for each in found), past(timed(1.0, B=1, C=2)))
    expect = Expectation(priors)
    assert expect.mean("rows", {"B": 2, "C": 2}) > expect.mean("rows", {"B": 1, "C": 2})
    assert best_first(priors, [("rows", {"B": 1, "C": 0}), ("rows", {"B": 2, "C": 0})]) == [1, 0]


def test_incumbents_of_other_experiments_say_nothing_of_the_variants() -> None:
    """The same kernels, measured against an incumbent that was three times as fast."""
    found = [past(timed(speedup, B=b)) for b, speedup in ((1, 1.0), (2, 2.0))]
    later = [
        past(timed(speedup / 3.0, B=b), experiment="later") for b, speedup in ((1, 1.0), (2, 2.0))
    ]
    both = Expectation(learn(*found, *later))
    gap = both.mean("rows", {"B": 2}) - both.mean("rows", {"B": 1})
    alone = Expectation(learn(*found))
    assert gap > alone.mean("rows", {"B": 2}) - alone.mean("rows", {"B": 1}) > 0.0


def test_what_could_not_be_built_is_counted_apart_from_what_was_slow() -> None:
    priors = learn(
        *(past(failed(Reason.COMPILE_FAILED, B=8)) for _ in range(3)),
        *(past(failed(Reason.OVER_LIMIT, B=4)) for _ in range(3)),
        *(past(timed(1.0, B=1)) for _ in range(3)),
    )
    (rows,) = priors.structures
    rates = {value.value: value.outcomes for value in rows.values}
    assert rates[8].unbuilt == 0.75
    assert rates[8].starved == 0.0
    assert rates[4].starved == 0.75
    assert rates[1].failed == 0.0
    assert all(value.effect == 0.0 for value in rows.values if value.value in (4, 8))
    expect = Expectation(priors)
    assert expect.mean("rows", {"B": 8}) < expect.mean("rows", {"B": 1})


def test_a_failure_of_the_harness_says_nothing_of_the_candidate() -> None:
    assert learn(past(failed(Reason.HARNESS_FAILED))).findings == 0


def test_old_findings_weigh_less_and_those_of_another_driver_half() -> None:
    weight = {
        name: learn(each).structures[0].outcomes.weight
        for name, each in {
            "today": past(timed(1.5, B=1)),
            "month": past(timed(1.5, B=1), age_days=30.0),
            "driver": past(timed(1.5, B=1), environment=BEFORE),
        }.items()
    }
    assert weight == {"today": 1.0, "month": 0.5, "driver": 0.5}


@pytest.mark.parametrize("arch", ["gfx942", ""])
def test_what_another_device_or_nobody_knows_which_showed_is_not_used(arch: str) -> None:
    assert learn(past(timed(2.0), environment=THERE, arch=arch)).findings == 0


def test_a_generator_that_gained_more_a_second_has_the_advantage_and_all_are_bounded() -> None:
    def turn(name: str, gain: float, seconds: float) -> PastTurn:
        return PastTurn(
            turn=Turn(
                number=1,
                generator=name,
                because="t",
                outcome=TurnOutcome.TRIED,
                gain_ratio=gain,
                seconds=seconds,
            ),
            age_days=0.0,
        )

    priors = learn(turns=(*(turn("search", 1.5, 1.0) for _ in range(9)), turn("idle", 1.0, 1e6)))
    said = priors.advantages()
    assert said["search"] == 8.0
    assert said["idle"] == 1 / 8
    assert learn(turns=(turn("search", 1.0, 5.0),)).generators == ()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 900), st.floats(0.01, 100.0))))
@settings(max_examples=25, deadline=None)
def test_priors_are_bounded_whatever_was_found_and_come_back_from_json(
    found: list[tuple[int, int, float]],
) -> None:
    priors = learn(*(past(timed(s, structure=f"s{a}", B=b)) for a, b, s in found))
    assert len(priors.structures) <= MOST_STRUCTURES
    assert len(priors.points) <= MOST_POINTS
    assert Priors.model_validate_json(priors.model_dump_json()) == priors
    assert abs(Expectation(priors).mean("s1", {"B": 1})) < 100.0


def test_a_prior_that_is_beyond_belief_is_refused() -> None:
    priors = learn(past(timed(2.0, B=1)))
    body = priors.model_dump(mode="json")
    body["structures"][0]["effect"] = 50.0
    with pytest.raises(ValidationError):
        Priors.model_validate(body)


def needed(surface: Surface, priors: Priors | None, seed: int) -> int:
    limit = 30

    def make(each: Surface, chance: int) -> SearchGenerator:
        return SearchGenerator(each.tunable, cores=1, seed=chance, priors=priors)

    return replay(make, surface, evaluations=limit, seed=seed).needed or limit + 1


HELD = [synthetic(kind, seed, part="test") for kind, seed in (("ridge", 9002), ("sparse", 9010))]
"""Seeds above 9000: surfaces that nothing was chosen on; small ones."""


def test_priors_of_other_sizes_save_evaluations() -> None:
    without, with_them = 0, 0
    for held in HELD:
        priors = priors_from([sibling(held, number=n, spread=0.03) for n in (1, 2)], seed=5)
        for seed in range(3):
            without += needed(held, None, seed)
            with_them += needed(held, priors, seed)
    assert with_them < 0.7 * without


def test_priors_that_lie_cost_a_bounded_number_of_evaluations() -> None:
    """The best is called the worst: that costs the prior's own guesses and what it put off."""
    cost = []
    for held in HELD:
        priors = priors_from([inverted(held)], seed=5)
        cost += [needed(held, priors, seed) - needed(held, None, seed) for seed in range(3)]
    assert sum(cost) / len(cost) <= GUESSES + LATE


def test_a_prior_chooses_first_guesses_and_no_more_than_its_share() -> None:
    held = HELD[0]
    priors = priors_from([inverted(held)], seed=5)
    plain, guided = (
        SearchGenerator(held.tunable, cores=1, seed=1, priors=each).propose(
            held.tunable.definition, held.workloads, history=(), count=GUESSES + 1
        )
        for each in (None, priors)
    )
    expect = Expectation(priors)
    means = [expect.mean(each.structure, each.params) for each in guided]
    assert means[:GUESSES] == sorted(means[:GUESSES], reverse=True)
    assert guided[GUESSES].digest == plain[0].digest
