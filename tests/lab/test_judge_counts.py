"""The judge's promises, counted: real decisions over simulated clocks, looks included."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.lab.judge_simulation import Modelled, Noise, Shape, recorded, simulate, tournament

from retuned.lab.resources import LabSettings
from retuned.lab.statistics import (
    ShapeSamples,
    anytime_p_value,
    anytime_quantile,
    combine,
    confidence_sequence,
)
from retuned.stages.verdict import Reason, Status

RUNS = 200
NOISES: dict[str, Noise] = {"modelled": Modelled(), "recorded": recorded()}
each_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())


def promotions(
    seed: int, noise: Noise, *speedups: float, runs: int = RUNS, placement: float = 0.0
) -> int:
    random = np.random.default_rng(seed)
    shapes = [
        Shape(speedup=each, base_us=100.0 * (n + 1), placement=placement)
        for n, each in enumerate(speedups)
    ]
    verdicts = [simulate(random, shapes, noise=noise).verdict for _ in range(runs)]
    return sum(verdict.status is Status.PROMOTE for verdict in verdicts)


@each_noise
def test_a_clone_is_never_promoted_in_two_hundred_runs(noise: Noise) -> None:
    assert promotions(1, noise, 1.0, 1.0) == 0


@each_noise
def test_two_per_cent_slower_is_never_promoted_in_two_hundred_runs(noise: Noise) -> None:
    assert promotions(2, noise, 0.98, 0.98) == 0


@each_noise
def test_a_true_win_of_three_per_cent_is_found_in_ninety_five_of_a_hundred(noise: Noise) -> None:
    assert promotions(3, noise, 1.03) >= 0.95 * RUNS


PLACEMENT = 0.017
"""Seen between processes of one kernel of 10 to 100 us on a shared machine, relative."""


def test_where_code_lies_promotes_no_clone_and_no_slower_one_in_a_hundred_runs() -> None:
    assert promotions(13, Modelled(), 1.0, runs=100, placement=PLACEMENT) == 0
    assert promotions(14, Modelled(), 0.98, 0.98, runs=100, placement=PLACEMENT) == 0


def test_where_code_lies_hides_no_win_of_three_per_cent_in_ninety_five_of_a_hundred() -> None:
    assert promotions(15, Modelled(), 1.03, placement=PLACEMENT) >= 0.95 * RUNS


def test_a_gain_of_exactly_what_is_required_is_promoted_no_more_often_than_allowed() -> None:
    assert promotions(4, Modelled(), 1.0 / 0.99, runs=100) <= 3


def test_looking_up_to_a_hundred_and_twenty_times_makes_no_more_false_wins_than_alpha() -> None:
    random, noise, wins, runs = np.random.default_rng(5), Modelled(), 0, 400
    for _ in range(runs):
        pairs = noise.pairs(random, 129 * 6)
        ratios = np.median(np.log(pairs[:, 0] / pairs[:, 1]).reshape(129, 6), axis=1)
        wins += any(
            confidence_sequence(ratios[:count].tolist(), confidence=0.99)[0] > 0.0
            for count in range(10, 130)
        )
    assert wins <= 0.01 * runs + 5


def test_a_clear_win_ends_at_the_first_look_and_a_small_one_takes_more() -> None:
    random = np.random.default_rng(6)
    clear = [simulate(random, [Shape(speedup=1.5)], noise=Modelled()).looks for _ in range(20)]
    small = [
        simulate(random, [Shape(speedup=1.014)], noise=Modelled(), units=2).looks for _ in range(20)
    ]
    assert set(clear) == {1}
    assert np.mean(small) > 1.5
    assert max(small) <= LabSettings().most_processes - LabSettings().processes + 1


def test_a_clear_loss_ends_at_the_first_look() -> None:
    random = np.random.default_rng(7)
    ends = [simulate(random, [Shape(speedup=0.7)], noise=Modelled()) for _ in range(20)]
    assert {end.looks for end in ends} == {1}
    assert {end.verdict.reason for end in ends} == {Reason.SLOWER}


def test_the_verdict_says_how_often_it_was_looked_at() -> None:
    end = simulate(np.random.default_rng(8), [Shape(speedup=1.5)], noise=Modelled())
    assert "1 looks" in end.verdict.detail


def test_a_time_that_physics_forbids_is_refused_however_fast_it_looks() -> None:
    random = np.random.default_rng(9)
    shapes = [Shape(speedup=20.0, floor_us=8.0), Shape(speedup=1.1)]
    ends = Counter(simulate(random, shapes, noise=Modelled()).verdict.reason for _ in range(20))
    assert ends == {Reason.IMPOSSIBLY_FAST: 20}


def test_the_guard_leaves_out_the_shape_where_a_variant_loses() -> None:
    random = np.random.default_rng(10)
    shapes = [Shape(speedup=0.9), Shape(speedup=1.4, base_us=200.0)]
    verdicts = [simulate(random, shapes, noise=Modelled()).verdict for _ in range(40)]
    promoted = [each for each in verdicts if each.status is Status.PROMOTE]
    assert len(promoted) >= 38
    for verdict in promoted:
        allowed = [shape.axes["M"] for shape in verdict.shapes if verdict.guard.allows(shape.axes)]
        assert allowed == [16]


def test_of_three_clones_none_is_promoted_and_the_fourth_that_wins_is() -> None:
    random, noise = np.random.default_rng(11), Modelled()
    clones = [[Shape(speedup=1.0)] for _ in range(3)]
    wrong = Counter(
        end.verdict.status for _ in range(60) for end in tournament(random, clones, noise=noise)
    )
    assert wrong[Status.PROMOTE] == 0
    found = Counter[bool]()
    for _ in range(40):
        ends = tournament(random, [*clones[:2], [Shape(speedup=1.05)]], noise=noise)
        assert not any(end.verdict.status is Status.PROMOTE for end in ends[:2])
        found[ends[2].verdict.status is Status.PROMOTE] += 1
    assert found[True] >= 38


@pytest.mark.parametrize("speedups", [(1.1, 1.3), (1.0, 1.5), (1.2, 1.2)])
def test_the_weighted_bound_covers_the_truth_where_shapes_differ(
    speedups: tuple[float, float],
) -> None:
    random, noise, covered, runs = np.random.default_rng(12), Modelled(), 0, 400
    truth = 2.0 / sum(1.0 / each for each in speedups)
    for _ in range(runs):
        weighted = combine([drawn(random, noise, each) for each in speedups])
        assert weighted is not None
        covered += weighted.interval(0.95).lower <= truth
    assert covered >= 0.935 * runs


def test_a_p_value_of_alpha_lies_where_the_bound_does() -> None:
    for units, alpha in ((10, 0.01), (12, 0.05), (40, 0.001)):
        reach = anytime_quantile(1.0 - alpha, units=units, dof=units - 1)
        found = anytime_p_value(reach, units=units, dof=units - 1, alpha=alpha)
        assert found == pytest.approx(alpha, rel=1e-6)


def drawn(random: np.random.Generator, noise: Noise, speedup: float) -> ShapeSamples:
    """Twelve blocks of one shape that was timed alone, drift and all."""
    pairs = 100.0 * noise.pairs(random, 12 * 4)
    return ShapeSamples(
        weight=1.0,
        incumbent_us=pairs[:, 0],
        candidate_us=pairs[:, 1] / speedup,
        block=np.repeat(np.arange(12), 4),
    )
