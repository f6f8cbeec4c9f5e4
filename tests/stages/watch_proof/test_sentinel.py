"""Sentinel of a kept swap: moments of its pairs, and the proof of a day."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.stages.watch_proof.blocks import Make, Run, plain, slower

from retuned.stages.watch.proof import (
    DAY_S,
    Arm,
    PairKind,
    Phase,
    ProofReason,
    ProofSettings,
    ProofState,
    SentinelAction,
    SentinelPlan,
    Verdict,
    action_of,
    begin_again,
    effect_so_far,
    next_plan,
)
from retuned.stages.watch.proof.sentinel import period_s

SETTINGS = ProofSettings()
DAY = ProofSettings(long_blocks=0, max_duration_s=DAY_S)
SHARE = 0.008


def plans(count: int, *, seed: int) -> list[SentinelPlan]:
    coin, found, now_s = random.Random(seed), list[SentinelPlan](), 0.0
    for _ in range(count):
        last = found[-1] if found else None
        found.append(next_plan(last, settings=SETTINGS, share=SHARE, coin=coin, now_s=now_s))
        now_s = found[-1].at_s + 2.0 * SETTINGS.long_block_s
    return found


@given(seed=st.integers(0, 2**32))
def test_each_period_has_one_pair_and_it_fits(seed: int) -> None:
    found = plans(100, seed=seed)
    length_s = period_s(SETTINGS, share=SHARE)
    for number, plan in enumerate(found):
        assert plan.until_s == pytest.approx((number + 1) * length_s)
        starts_s = plan.until_s - length_s
        assert starts_s <= plan.at_s <= plan.until_s - 2.0 * SETTINGS.long_block_s


def test_moments_cover_the_period() -> None:
    length_s = period_s(SETTINGS, share=SHARE)
    parts = [1.0 - (plan.until_s - plan.at_s) / length_s for plan in plans(2_000, seed=1)]
    for tenth in range(10):
        share = sum(tenth <= 10.0 * part < tenth + 1 for part in parts) / len(parts)
        assert 0.07 < share < 0.13


def test_the_swap_is_off_for_its_share_of_the_time() -> None:
    found = plans(500, seed=2)
    off_s = SETTINGS.long_block_s * len(found)
    assert off_s / found[-1].until_s == pytest.approx(SHARE, rel=1e-6)


def test_a_period_that_was_missed_is_not_made_up_for() -> None:
    coin = random.Random(3)
    plan = next_plan(None, settings=SETTINGS, share=SHARE, coin=coin, now_s=0.0)
    assert action_of(plan, now_s=plan.until_s + 5_000.0) is SentinelAction.DRAW
    later_s = plan.until_s + 5_000.0
    after = next_plan(plan, settings=SETTINGS, share=SHARE, coin=coin, now_s=later_s)
    assert after.at_s >= later_s
    assert after.day_began_s == plan.day_began_s


def test_a_day_ends_after_24_hours() -> None:
    found = plans(200, seed=4)
    days = [plan.day_began_s for plan in found]
    for plan, day_s in zip(found, days, strict=True):
        assert plan.at_s - day_s < DAY_S + 2.0 * period_s(SETTINGS, share=SHARE)
    assert len(set(days)) == 3


def test_a_share_must_be_positive() -> None:
    with raises_naming(ValueError, "0"):
        period_s(SETTINGS, share=0.0)


class Day(Run):
    """A day of a sentinel, fed pair by pair, one in 20 minutes."""

    def __init__(self, *, seed: int = 1) -> None:
        before = Run(ProofSettings(long_blocks=0), seed=seed)
        before.until_done(slower(-0.03))
        super().__init__(DAY, seed=seed)
        self.state = begin_again(before.state, DAY, at_s=0.0, sentinel=True)

    def pair(self, make: Make = plain) -> ProofState:
        self.now_s += 1_248.0
        return super().pair(make)


def test_its_pairs_are_long_and_the_swap_is_on_between_them() -> None:
    day = Day()
    assert day.state.phase is Phase.SENTINEL
    day.pair(slower(-0.03))
    assert day.state.swap_is_on
    (pair,) = day.state.of(PairKind.LONG)
    assert pair.first in (Arm.ON, Arm.OFF)
    effect = effect_so_far(day.state)
    assert effect is not None
    assert effect < 0.0


def test_a_day_in_which_the_swap_harms_withdraws_it_within_hours() -> None:
    day = Day()
    state = day.until_done(slower(0.05))
    report = state.report
    assert report is not None
    assert (report.verdict, report.reason) == (Verdict.HARMS, ProofReason.SLOWER)
    assert report.pairs <= 15


@pytest.mark.parametrize(
    ("by", "verdict"), [(-0.03, Verdict.HELPS), (0.0, Verdict.NO_MEASURABLE_EFFECT)]
)
def test_a_day_without_harm_ends_with_what_it_shows(by: float, verdict: Verdict) -> None:
    state = Day().until_done(slower(by))
    assert state.report is not None
    assert state.report.verdict in (verdict, Verdict.TOO_LITTLE_TRAFFIC)
    assert state.report.verdict is verdict or by == 0.0
    assert 60 <= state.report.pairs <= 70
