"""E-values keep their promise on every coin, and the interval holds what neither side rejects."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.watch.proof import PairKind, ProofSettings
from retuned.stages.watch.proof.evidence import (
    FASTER,
    SHIFTS,
    SLOWER,
    Capitals,
    bet,
    factors,
    interval,
    location,
    log_e,
    scale_of,
    visible_effect,
)

BOUND = ProofSettings().log_bound
finite = st.floats(min_value=-1e6, max_value=1e6)
scales = st.floats(min_value=1e-5, max_value=10.0)


@given(d=finite, s=scales)
def test_a_factor_averages_to_one_over_a_flipped_sign(d: float, s: float) -> None:
    for side in (FASTER, SLOWER):
        both = np.exp(factors(np.array([side * d / s, -side * d / s])))
        assert both.mean(axis=0) == pytest.approx(np.ones(len(SHIFTS)), abs=1e-9)


@given(d=finite, s=scales)
def test_a_bet_never_risks_more_than_the_capital(d: float, s: float) -> None:
    assert np.all(np.abs(bet(np.array([d / s]))) <= 1.0)
    assert np.all(np.isfinite(factors(np.array([d / s]))))


@given(
    d=st.lists(st.floats(min_value=-1.0, max_value=1.0), min_size=1, max_size=5),
    s=st.floats(min_value=1e-3, max_value=1.0),
    m=st.floats(min_value=-0.1, max_value=0.1),
)
def test_the_e_value_averages_to_one_over_all_orders_of_the_pairs(
    d: list[float], s: float, m: float
) -> None:
    values = []
    for code in range(2 ** len(d)):
        signed = [m + (x if code >> at & 1 else -x) for at, x in enumerate(d)]
        values.append(math.exp(log_e(signed, [s] * len(d), m=m, side=SLOWER)))
    assert np.mean(values) == pytest.approx(1.0, rel=1e-6)


def test_ten_thousand_labels_of_one_null_reach_the_bound_in_at_most_one_per_cent() -> None:
    rng = np.random.default_rng(3)
    d = 0.006 * rng.standard_t(3, 120) + 0.002  # an offset of the instrument, not of the arm
    sham = (0.006 * rng.standard_t(3, 30)).tolist()
    scale = scale_of(sham, ())
    rejected = {FASTER: 0, SLOWER: 0}
    for _ in range(20):
        signs = rng.choice([-1.0, 1.0], (500, 120))
        for side in rejected:
            logs = factors((side * signs * d / scale).ravel()).reshape(500, 120, len(SHIFTS))
            path = np.exp(np.cumsum(logs, axis=1)).mean(axis=2)
            rejected[side] += int((path.max(axis=1) >= 100.0).sum())
    assert rejected[FASTER] <= 100
    assert rejected[SLOWER] <= 100
    assert rejected[FASTER] + rejected[SLOWER] > 0  # the bets do win at times


def test_evidence_of_thousands_of_pairs_does_not_overflow() -> None:
    d = [0.05] * 5000
    assert log_e(d, [0.005] * 5000, m=0.0, side=SLOWER) > 2000.0
    assert log_e(d, [0.005] * 5000, m=0.0, side=FASTER) < 0.0
    capitals = Capitals()
    for _ in range(3000):
        capitals = capitals.after_short(0.05, scale=0.005, margin=0.005)
    assert math.isfinite(capitals.slower.log_e)
    assert math.isfinite(capitals.faster.log_e)


def test_capitals_of_single_bets_equal_the_e_value_of_all_pairs() -> None:
    rng = np.random.default_rng(4)
    d, s = (0.01 * rng.standard_normal(40)).tolist(), rng.uniform(0.005, 0.02, 40).tolist()
    capitals = Capitals()
    for each, scale in zip(d, s, strict=True):
        capitals = capitals.after_short(each, scale=scale, margin=0.004)
        capitals = capitals.after_long(-each, scale=scale).after_busy(each, scale=scale)
    assert capitals.faster.log_e == pytest.approx(log_e(d, s, m=0.0, side=FASTER))
    assert capitals.slower.log_e == pytest.approx(log_e(d, s, m=0.0, side=SLOWER))
    assert capitals.above_margin.log_e == pytest.approx(log_e(d, s, m=-0.004, side=SLOWER))
    assert capitals.below_margin.log_e == pytest.approx(log_e(d, s, m=0.004, side=FASTER))
    assert capitals.long_faster.log_e == pytest.approx(capitals.slower.log_e)
    assert capitals.busy_faster.log_e == pytest.approx(capitals.faster.log_e)


def test_equal_numbers_of_slow_steps_bet_nothing() -> None:
    assert Capitals().after_slow_steps(on=3, off=3) == Capitals()
    assert Capitals().after_slow_steps(on=3, off=0).slow_steps.log_e > 0.0
    assert Capitals().after_slow_steps(on=0, off=3).slow_steps.log_e < 0.0


def test_one_burst_does_not_eat_the_evidence_of_fifty_pairs() -> None:
    rng = np.random.default_rng(5)
    d = (-0.01 + 0.006 * rng.standard_normal(50)).tolist()
    before = log_e(d, [0.006] * 50, m=0.0, side=FASTER)
    after = log_e([*d, 0.3], [0.006] * 51, m=0.0, side=FASTER)
    assert before > BOUND
    assert after > before - 1.0


def test_the_scale_ignores_an_effect_and_outliers() -> None:
    rng = np.random.default_rng(6)
    sham = (0.01 * rng.standard_normal(200)).tolist()
    earlier = (0.5 + 0.01 * rng.standard_normal(200)).tolist()
    assert scale_of(sham, earlier) == pytest.approx(0.01, rel=0.15)
    assert scale_of([*sham, 5.0, -7.0], earlier) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("sham", [(), (0.1, 0.2, 0.3)])
def test_the_scale_has_a_default_before_four_pairs(sham: tuple[float, ...]) -> None:
    assert scale_of(sham, ()) == 0.01


def test_the_scale_of_equal_pairs_is_not_zero() -> None:
    assert scale_of([0.0] * 30, ()) == 1e-4


def test_the_interval_has_the_effect_and_ends_where_each_side_rejects() -> None:
    rng = np.random.default_rng(8)
    d, s = (-0.02 + 0.006 * rng.standard_normal(80)).tolist(), [0.006] * 80
    low, high = interval(d, s, log_bound=BOUND)
    assert low is not None
    assert high is not None
    assert -0.03 < low < location(d, s) < high < -0.012
    assert log_e(d, s, m=low, side=SLOWER) >= BOUND > log_e(d, s, m=low + 1e-6, side=SLOWER)
    assert log_e(d, s, m=high, side=FASTER) >= BOUND > log_e(d, s, m=high - 1e-6, side=FASTER)


def test_the_interval_of_few_pairs_is_open() -> None:
    assert interval([-0.02] * 5, [0.006] * 5, log_bound=BOUND) == (None, None)
    assert interval([], [], log_bound=BOUND) == (None, None)


def test_the_interval_covers_the_true_effect() -> None:
    rng = np.random.default_rng(9)
    missed = 0
    for _ in range(200):
        d = 0.01 + 0.006 * rng.standard_t(3, 40)
        low, high = interval(d.tolist(), [0.006] * 40, log_bound=BOUND)
        missed += (low is not None and low > 0.01) or (high is not None and high < 0.01)
    assert missed <= 8  # 2 % of 200, and two standard errors


def test_more_pairs_show_smaller_effects() -> None:
    assert visible_effect(0.006, 300) == pytest.approx(0.00208, rel=0.01)
    assert visible_effect(0.006, 30) > visible_effect(0.006, 300)


def test_the_kinds_of_pairs_have_stable_codes() -> None:
    assert [kind.value for kind in PairKind] == ["sham", "short", "long"]


@pytest.mark.parametrize("effect", [-0.73, -0.117, -0.02, -0.003])
def test_a_server_without_noise_shows_any_effect_in_few_pairs(effect: float) -> None:
    """Pairs of a vLLM alone on an H200 differ by 0.01 %: 0.73 is seven thousand scales."""
    rng = np.random.default_rng(5)
    d = (effect + 1e-4 * rng.standard_normal(14)).tolist()
    scales = [1e-4] * len(d)
    bound = math.log(100.0)
    assert log_e(d, scales, m=0.0, side=FASTER) >= bound
    assert log_e(d, scales, m=0.0, side=SLOWER) < 0.0
    low, high = interval(d, scales, log_bound=bound)
    assert low is not None
    assert high is not None
    assert effect - 0.001 < low < effect < high < effect + 0.001
