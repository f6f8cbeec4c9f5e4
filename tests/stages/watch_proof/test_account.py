"""The account of a step, and the prediction before a proof."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.stages.watch_proof.blocks import block

from retuned.stages.watch.proof import (
    Arm,
    ArmSums,
    ForecastReason,
    KernelTime,
    Pace,
    PairKind,
    PairResult,
    VoidReason,
    forecast,
    predict,
    settle_account,
)

SAVES = (KernelTime(lengths=(8,), launches=200.0, off_s=7.5e-6, on_s=3e-6),)
"""0.9 ms in a step."""


def pair(
    *,
    period_ms: float = 0.0,
    busy_ms: float | None = 0.0,
    host_ms: float | None = 0.0,
    kind: PairKind = PairKind.SHORT,
    void: VoidReason | None = None,
) -> PairResult:
    """Return a pair of 100 steps of 10 ms, with 6 ms of GPU and 7 ms of host time each."""

    def sums(period: float, busy: float | None, host: float | None) -> ArmSums:
        return ArmSums(
            steps=100,
            seconds=1.0 + 0.1 * period,
            expected_s=1.0,
            busy_s=None if busy is None else 0.6 + 0.1 * busy,
            host_s=None if host is None else 0.7 + 0.1 * host,
        )

    return PairResult(
        number=0,
        kind=kind,
        first=Arm.ON,
        on=sums(period_ms, busy_ms, host_ms),
        off=sums(0.0, None if busy_ms is None else 0.0, None if host_ms is None else 0.0),
        void=void,
    )


def test_a_host_bound_server_takes_up_in_gaps_what_the_gpu_saves() -> None:
    account = settle_account([pair(busy_ms=-0.9)] * 5, kernels=SAVES)
    assert account.busy_s == pytest.approx(-0.0009)
    assert account.gap_s == pytest.approx(0.0009)
    assert account.period_s == pytest.approx(0.0)
    assert account.host_bound
    assert not account.elsewhere


def test_a_gpu_bound_server_gains_what_the_gpu_saves() -> None:
    account = settle_account([pair(period_ms=-0.9, busy_ms=-0.9)] * 5, kernels=SAVES)
    assert account.gap_s == pytest.approx(0.0)
    assert account.period_s == pytest.approx(-0.0009)
    assert not account.host_bound


def test_a_kernel_that_saves_time_while_gpu_time_grows_slows_something_else() -> None:
    account = settle_account([pair(period_ms=0.2, busy_ms=0.2)] * 5, kernels=SAVES)
    assert account.elsewhere
    in_graphs = settle_account([pair(busy_ms=0.2)] * 5, kernels=SAVES, in_graphs=True)
    assert not in_graphs.elsewhere, "its launches in graphs may be what got slower"
    assert not account.host_bound
    assert not settle_account([pair(period_ms=0.2, busy_ms=0.2)] * 5).elsewhere


def test_host_time_is_given_per_launch() -> None:
    account = settle_account([pair(period_ms=1.4, host_ms=1.4)] * 5, kernels=SAVES)
    assert account.host_s == pytest.approx(0.0014)
    assert account.host_per_launch_s == pytest.approx(7e-6)


def test_one_odd_pair_does_not_move_the_account() -> None:
    pairs = [pair(busy_ms=-0.9)] * 5 + [pair(period_ms=300.0, busy_ms=200.0)]
    assert settle_account(pairs).busy_s == pytest.approx(-0.0009)


def test_small_savings_do_not_make_a_server_host_bound() -> None:
    assert not settle_account([pair(busy_ms=-0.01)] * 5, least_s=0.00005).host_bound


def test_void_and_sham_pairs_and_missing_times_are_left_out() -> None:
    odd = [
        pair(busy_ms=-5.0, kind=PairKind.SHAM),
        pair(busy_ms=-5.0, void=VoidReason.FEW_STEPS),
    ]
    assert settle_account(odd).period_s is None
    account = settle_account([pair(busy_ms=None, host_ms=None, period_ms=-1.0)])
    assert (account.busy_s, account.gap_s, account.host_s) == (None, None, None)
    assert account.period_s == pytest.approx(-0.001)
    assert not account.host_bound


@pytest.mark.parametrize(
    ("gpu_bound", "worth", "host_bound"), [(1.0, True, False), (0.0, False, True)]
)
def test_a_prediction_counts_only_steps_that_the_gpu_paces(
    gpu_bound: float, worth: bool, host_bound: bool
) -> None:
    found = predict(0.1, 2.0, gpu_bound=gpu_bound, min_effect=0.005)
    assert found.effect == pytest.approx(math.log(1.0 - 0.05 * gpu_bound))
    assert (found.worth_a_proof, found.host_bound) == (worth, host_bound)


def test_a_small_kernel_is_not_the_hosts_fault() -> None:
    found = predict(0.001, 2.0, gpu_bound=1.0, min_effect=0.005)
    assert not found.worth_a_proof
    assert not found.host_bound


@pytest.mark.parametrize(("share", "speedup"), [(1.1, 2.0), (-0.1, 2.0), (0.5, 0.0)])
def test_impossible_shares_and_speedups_are_refused(share: float, speedup: float) -> None:
    with pytest.raises(ValueError, match="share"):
        predict(share, speedup, gpu_bound=1.0, min_effect=0.005)


def test_the_pace_counts_steps_with_small_gaps() -> None:
    pace = Pace().after(block(Arm.OFF, noise=0.0, busy=0.00990).steps)
    pace = pace.after(block(Arm.OFF, noise=0.0, busy=0.005).steps)
    pace = pace.after(block(Arm.OFF, noise=0.0).steps)  # not measured
    assert (pace.steps, pace.gpu_bound, pace.share) == (120, 60, 0.5)
    assert Pace().share is None


@pytest.mark.parametrize(
    ("graph", "host_s", "clear"),
    [
        (0, 0.0236, False),  # of an H200: 0.14 ms of GPU work after the last launch
        (0, 0.0190, True),  # the GPU lags behind
        (16, 0.0236, True),  # a replay has no launches, so the host waited for its answer
        (0, math.nan, True),
    ],
)
def test_launches_that_take_as_long_as_the_gpu_leave_the_pace_unclear(
    graph: int, host_s: float, clear: bool
) -> None:
    known = block(Arm.OFF, noise=0.0, busy=0.0237).steps
    steps = replace(
        known,
        period_s=np.full(len(known), 0.0245),
        graph=np.full(len(known), graph),
        host_s=np.full(len(known), host_s),
    )
    pace = Pace().after(steps).after(steps)
    assert (pace.gpu_bound, pace.unclear) == ((120, 0) if clear else (0, 120))
    assert (pace.steps, pace.share) == (120, 1.0 if clear else None)
    found = forecast(0.26, 1.18, pace=pace, min_effect=0.005)
    assert found.reason is (None if clear else ForecastReason.PACE_UNCLEAR)
    assert not found.host_bound


def test_clear_steps_predict_where_they_are_most_and_enough() -> None:
    pace = Pace(steps=300, gpu_bound=180, unclear=100, seen=300)
    found = forecast(0.5, 2.0, pace=pace, min_effect=0.005)
    assert found.prediction is not None
    assert found.prediction.gpu_bound == pytest.approx(0.9)
    for changed, reason in (
        ({"unclear": 151, "gpu_bound": 149}, ForecastReason.PACE_UNCLEAR),
        ({"steps": 199}, ForecastReason.PACE_UNCLEAR),
        ({"steps": 199, "unclear": 99}, None),
        ({"steps": 149, "unclear": 50, "gpu_bound": 99}, ForecastReason.FEW_STEPS),
    ):
        other = pace.model_copy(update={"gpu_bound": 90} | changed)
        assert forecast(0.5, 2.0, pace=other, min_effect=0.005).reason is reason
