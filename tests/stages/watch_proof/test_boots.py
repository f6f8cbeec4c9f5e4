"""What is measured of one boot, how boots differ, and the bets on pairs of boots."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.live_proof_replicas_sim import ENVIRONMENT
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.expect import raises_naming

from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof import (
    Arm,
    BootSettings,
    BootWindow,
    StepColumns,
    boot_settings_of,
    check_window,
    spread_of,
    window_of,
)
from retuned.stages.watch.proof.boots import interval_of_boots, log_e_of_boots
from retuned.stages.watch.proof.evidence import FASTER, SLOWER

BOUND = BootSettings().log_bound


def steps(count: int = 2000, *, on: bool = False, step_s: float = 0.1) -> StepColumns:
    nothing = np.full(count, math.nan)
    return StepColumns(
        on=np.full(count, on),
        prefill=np.zeros(count),
        decode=np.full(count, 4.0),
        context=np.full(count, 900.0),
        graph=np.full(count, 4),
        period_s=np.full(count, step_s),
        busy_s=nothing,
        host_s=nothing,
        ended_s=7.0 + step_s * np.arange(count, dtype=np.float64),
    )


def window(columns: StepColumns) -> BootWindow | None:
    return window_of(
        columns,
        replica="pod-a",
        boot="pod-a/1",
        environment=ENVIRONMENT,
        began_s=1000.0,
        opens_s=107.0,
        closes_s=157.0,
    )


def test_a_window_leaves_out_the_first_minutes_and_what_follows_it() -> None:
    found = window(steps())
    assert found is not None
    assert found.sums.steps == 500
    assert found.sums.seconds == pytest.approx(50.0)
    assert found.sums.graphs == ((4, 500),)
    assert found.arm is Arm.OFF
    assert len(found.rows.rows) == 128
    check_window(found)


def test_a_window_with_steps_of_both_arms_is_none() -> None:
    mixed = steps()
    mixed.on[1200:] = True
    assert window(mixed) is None
    mixed.on[:] = True
    found = window(mixed)
    assert found is not None
    assert found.arm is Arm.ON


def test_steps_after_idling_do_not_count() -> None:
    columns = steps()
    columns.period_s[1100:1120] = math.nan
    found = window(columns)
    assert found is not None
    assert found.sums.steps == 480


def test_a_server_without_steps_in_the_window_has_none() -> None:
    found = window(steps(10))
    assert found is not None
    assert found.sums.steps == 0
    check_window(found)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1},
        {"seconds": math.nan},
        {"seconds": -5.0},
        {"seconds": 1e9},
        {"wall_s": math.inf},
        {"features": (1.0, 2.0)},
        {"features": (math.nan,) * 6},
        {"features": (-1.0,) * 6},
        {"graphs": ((4, 499),)},
        {"graphs": ((4, 501), (8, -1))},
        {"graphs": (*((size, 0) for size in range(600)), (1, 500))},
    ],
)
def test_numbers_that_no_boot_has_are_refused(change: dict[str, object]) -> None:
    found = window(steps())
    assert found is not None
    wrong = found.model_copy(update={"sums": found.sums.model_copy(update=change)})
    with raises_naming(ValueError, "pod-a/1"):
        check_window(wrong)


@pytest.mark.parametrize("row", [(0, 4, 900, 4, math.nan), (0, -4, 900, 4, 0.1), (0, 4, 900, 4, 0)])
def test_rows_that_no_step_has_are_refused(row: tuple[float, ...]) -> None:
    found = window(steps())
    assert found is not None
    rows = found.rows.model_copy(update={"rows": (row,)})
    with pytest.raises(ValueError, match="row"):
        check_window(found.model_copy(update={"rows": rows}))
    many = found.rows.model_copy(update={"rows": found.rows.rows * 4})
    with pytest.raises(ValueError, match="more rows"):
        check_window(found.model_copy(update={"rows": many}))


def test_the_spread_is_that_of_one_boot() -> None:
    rng = np.random.default_rng(1)
    d = (0.01 * (rng.standard_normal(400) - rng.standard_normal(400))).tolist()
    found = spread_of(d)
    assert found.sd == pytest.approx(0.01, rel=0.1)
    assert found.high == pytest.approx(found.sd, rel=0.1)
    assert found.scale == pytest.approx(math.sqrt(2.0) * found.sd)


@pytest.mark.parametrize("pairs", [4, 8, 24])
def test_the_upper_end_is_above_the_true_spread_nine_of_ten_times(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    draws = 0.01 * math.sqrt(2.0) * rng.standard_normal((2000, pairs))
    above = sum(spread_of(row.tolist()).high > 0.01 for row in draws)
    assert above / 2000 == pytest.approx(0.9, abs=0.03)


def test_further_pairs_count_by_their_deviation_from_their_mean() -> None:
    sham = [0.01, -0.01, 0.01, -0.01]
    assert spread_of(sham, [0.5]).sd == spread_of(sham).sd
    assert spread_of(sham, [0.5, 0.5, 0.5]).sd < spread_of(sham).sd
    assert spread_of(sham, [0.4, 0.6]).sd > spread_of(sham).sd
    assert spread_of(sham, [0.4, 0.6]).measured == spread_of(sham).measured


def test_pairs_of_the_proof_never_bring_the_upper_end_below_the_measured_spread() -> None:
    found = spread_of([0.05, -0.05, 0.05, -0.05], [0.0] * 60)
    assert found.sd < 0.01
    assert found.high == found.measured == pytest.approx(0.05 / math.sqrt(2.0))


def test_a_spread_needs_four_pairs() -> None:
    with raises_naming(ValueError, "4", "3"):
        spread_of([0.01, 0.02, 0.03])


def test_boots_that_do_not_differ_have_a_least_scale() -> None:
    found = spread_of([0.0] * 4)
    assert found.scale == found.high_scale == 1e-4


@given(z=st.floats(-1e6, 1e6), scale=st.floats(1e-4, 1.0))
def test_a_bet_has_mean_one_over_the_coin(z: float, scale: float) -> None:
    both = [log_e_of_boots([s * z * scale], [scale], m=0.0, side=FASTER) for s in (1.0, -1.0)]
    assert sum(map(math.exp, both)) / 2.0 == pytest.approx(1.0)


def test_eight_pairs_that_agree_decide_and_seven_do_not() -> None:
    def shown(pairs: int) -> float:
        return log_e_of_boots([-0.5] * pairs, [0.01] * pairs, m=0.0, side=FASTER)

    assert shown(7) < BOUND < shown(8)


def test_the_interval_holds_the_effect_and_is_open_below_eight_pairs() -> None:
    d = [-0.052, -0.048, -0.05, -0.055, -0.045, -0.05, -0.047, -0.053, -0.05, -0.05]
    low, high = interval_of_boots(d, [0.01] * 10, log_bound=BOUND)
    assert low is not None
    assert high is not None
    assert -0.1 < low < -0.05 < high < 0.0
    assert log_e_of_boots(d, [0.01] * 10, m=high + 0.001, side=FASTER) >= BOUND
    assert log_e_of_boots(d, [0.01] * 10, m=low - 0.001, side=SLOWER) >= BOUND
    assert interval_of_boots(d[:7], [0.01] * 7, log_bound=BOUND) == (None, None)
    assert interval_of_boots([], [], log_bound=BOUND) == (None, None)


def test_settings_have_the_effects_of_the_policy() -> None:
    found = boot_settings_of(LiveProof(min_effect=0.02, max_harm=0.1))
    assert (found.min_effect, found.max_harm) == (0.02, 0.1)
    assert (found.leave_out_s, found.window_s) == (600.0, 600.0)
    rule = LiveProof.model_validate({"canaryLeaveOut": "5s", "canaryWindow": "24h"})
    found = boot_settings_of(rule)
    assert (found.leave_out_s, found.window_s) == (5.0, 86_400.0)


@pytest.mark.parametrize("field", ["canaryLeaveOut", "canaryWindow"])
def test_a_boot_lasts_at_most_a_day(field: str) -> None:
    for text in ("25h", "0s"):
        with pytest.raises(ValidationError):
            LiveProof.model_validate({field: text})
