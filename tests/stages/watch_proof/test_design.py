"""Plans come before data, and the difference of a pair comes from its counted steps."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.live_proof_sim import GPU_BOUND, SimulatedServer, Swap
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.stages.watch_proof.blocks import (
    SHORT,
    STEP_S,
    Run,
    block,
    measured,
    plain,
    planned,
    slower,
)

from retuned.stages.watch.proof import (
    Arm,
    MeasuredBlock,
    PairKind,
    PairMeasured,
    PairPlan,
    ProofSettings,
    ProofState,
    StepRecord,
    VoidReason,
    begin,
    block_is_over,
    block_length_s,
    columns_of,
    next_pair,
    next_scale,
    step,
)
from retuned.stages.watch.proof.design import arm_sums, counted, plan_pair, result_of


def plan(first: Arm = Arm.ON, kind: PairKind = PairKind.SHORT) -> PairPlan:
    return PairPlan(
        number=0, kind=kind, first=first, block_s=1.0, most_block_s=10.0, least_steps=16
    )


def test_the_coin_decides_the_order() -> None:
    class Fixed:
        def __init__(self, bit: int) -> None:
            self.bit = bit

        def getrandbits(self, k: int, /) -> int:
            return self.bit

    orders = [
        plan_pair(3, PairKind.SHORT, settings=SHORT, toggle_s=0.0, coin=Fixed(bit)).runs
        for bit in (0, 1)
    ]
    assert orders == [(Arm.OFF, Arm.ON), (Arm.ON, Arm.OFF)]


def test_both_orders_come_equally_often() -> None:
    run = Run(ProofSettings(long_blocks=0, pilot_pairs=400, max_duration_s=1e6))
    counts: Counter[Arm] = Counter()
    for _ in range(400):
        run.state = next_pair(run.state, run.coin)
        counts[planned(run.state).first] += 1
        run.state = run.state.model_copy(update={"plan": None})
    assert abs(counts[Arm.ON] - 200) < 60


def test_both_blocks_of_a_sham_pair_run_the_original() -> None:
    sham = plan(kind=PairKind.SHAM)
    assert sham.runs == (Arm.OFF, Arm.OFF)
    assert sham.labels == (Arm.ON, Arm.OFF)


def test_the_plan_is_in_the_state_before_data_and_data_without_a_plan_is_refused() -> None:
    state = begin(SHORT, at_s=0.0)
    early = PairMeasured(0, block(Arm.OFF), block(Arm.OFF), at_s=2.0)
    with raises_naming(ValueError, "pair 0"):
        step(state, early)
    state = next_pair(state, random.Random(1))
    assert planned(state).number == 0
    with raises_naming(ValueError, "pair 1"):
        step(state, replace(early, number=1))
    with pytest.raises(ValueError, match="between pairs"):
        next_pair(state, random.Random(1))
    assert step(state, early).plan is None


@pytest.mark.parametrize(
    ("toggle_s", "expected"), [(0.0, 1.0), (0.005, 1.0), (0.010, 2.0), (1.0, 10.0)]
)
def test_a_dear_toggle_makes_blocks_longer(toggle_s: float, expected: float) -> None:
    assert block_length_s(ProofSettings(), toggle_s=toggle_s) == expected


def test_a_block_waits_for_its_steps_but_not_for_ever() -> None:
    assert not block_is_over(plan(), elapsed_s=0.9, steps=100)
    assert block_is_over(plan(), elapsed_s=1.0, steps=16)
    assert not block_is_over(plan(), elapsed_s=9.9, steps=15)
    assert block_is_over(plan(), elapsed_s=10.0, steps=0)


def test_simulated_blocks_end_where_an_adapter_would_end_them() -> None:
    server = SimulatedServer(GPU_BOUND, Swap(), seed=3)
    for length, least in ((1.0, 16), (0.05, 40), (0.3, 16)):
        each = plan().model_copy(update={"block_s": length, "least_steps": least})
        made = server.block(Arm.ON, each)
        over = [
            block_is_over(each, elapsed_s=ended - made.began_s, steps=at + 1)
            for at, ended in enumerate(made.steps.ended_s.tolist())
        ]
        assert over == [False] * (len(over) - 1) + [True]


def test_the_burn_in_leaves_out_early_steps_and_steps_in_flight() -> None:
    made = block(Arm.OFF, count=60)
    # the first steps end after 0.3 s: only two in flight
    assert len(counted(made, plan(), settings=SHORT)) == 58
    late = replace(made, began_s=made.steps.ended_s[9] - 0.25)
    assert len(counted(late, plan(), settings=SHORT)) == 51
    whole = SHORT.model_copy(update={"burn_in_s": 0.0, "burn_in_steps": 0})
    assert len(counted(made, plan(), settings=whole)) == 60


def test_labels_take_turns_in_an_order_that_a_trend_does_not_favour() -> None:
    settings = SHORT.model_copy(update={"turn_steps": 4})
    coin = random.Random(4)
    made = plan_pair(3, PairKind.SHORT, settings=settings, toggle_s=0.0, coin=coin)
    a, b = made.labels
    assert made.order == (a, b, b, a, b, a, a, b)
    at = {arm: [i for i, each in enumerate(made.order) if each is arm] for arm in made.labels}
    for power in (1, 2):  # a straight and a bent trend
        assert len({sum(i**power for i in places) for places in at.values()}) == 1
    long = plan_pair(4, PairKind.LONG, settings=settings, toggle_s=0.0, coin=coin)
    assert (long.turn_steps, long.order) == (0, ())


def test_steps_of_turns_have_no_burn_in_of_their_block() -> None:
    made = block(Arm.OFF, count=60)
    turns = plan().model_copy(update={"turn_steps": 4, "turns": 8})
    assert len(counted(made, turns, settings=SHORT)) == 60


def test_steps_after_idling_are_left_out() -> None:
    made = block(Arm.OFF, count=60)
    made.steps.period_s[[5, 6]] = np.nan, 0.0
    assert len(counted(made, plan(), settings=SHORT)) == 56


def test_records_and_columns_are_the_same_steps() -> None:
    records = [
        StepRecord(7, Arm.ON, 100, 3, 900, None, None, 0.004, None, 1.5),
        StepRecord(8, Arm.OFF, 0, 4, 1000, 8, 0.005, None, 0.002, 1.505),
    ]
    columns = columns_of(records)
    assert columns.on.tolist() == [True, False]
    assert columns.graph.tolist() == [0, 8]
    assert np.isnan(columns.period_s).tolist() == [True, False]
    assert np.isnan(columns.busy_s).tolist() == [False, True]
    assert columns.host_s[1] == 0.002
    assert columns.ended_s.tolist() == [1.5, 1.505]
    assert len(columns_of([])) == 0


def test_a_pair_with_too_few_steps_in_a_block_is_void_and_bets_nothing() -> None:
    run = Run()
    run.pilot()
    before = run.state.capitals
    for count in (0, 5):
        run.pair(lambda label, arm, seed, c=count: block(arm, seed=seed, count=c))  # type: ignore[misc]
        assert run.state.pairs[-1].void is VoidReason.FEW_STEPS
        assert run.state.pairs[-1].d is None
    assert run.state.capitals == before
    run.pair(lambda label, arm, seed: block(arm, seed=seed, count=6))
    assert run.state.pairs[-1].void is None


@pytest.mark.parametrize("short", [Arm.OFF, Arm.ON])
def test_one_block_with_too_few_steps_makes_the_pair_void(short: Arm) -> None:
    run = Run()
    run.pilot()
    run.pair(lambda label, arm, seed: block(arm, seed=seed, count=5 if arm is short else 60))
    assert run.state.pairs[-1].void is VoidReason.FEW_STEPS


@pytest.mark.parametrize("at", [2, 59])
def test_a_counted_step_of_another_arm_makes_the_pair_void(at: int) -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        made = block(arm, seed=seed)
        made.steps.on[at] = arm is not Arm.ON
        return made

    run = Run()
    run.pilot()
    run.pair(make)
    assert run.state.pairs[-1].void is VoidReason.MIXED_ARMS


def test_steps_in_flight_may_be_of_the_arm_before() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        made = block(arm, seed=seed)
        made.steps.on[:2] = arm is not Arm.ON
        return made

    run = Run()
    run.pilot()
    run.pair(make)
    assert run.state.pairs[-1].void is None


def test_voiding_does_not_depend_on_times() -> None:
    voids = []
    for by in (0.0, 50.0):
        run = Run(SHORT.model_copy(update={"harm_pairs": 100}))
        run.pilot()
        run.pair(slower(by))
        voids.append(run.state.pairs[-1].void)
    assert voids == [None, None]


def blocks_of(pairs: int, *, seed: int) -> list[tuple[MeasuredBlock, MeasuredBlock]]:
    """Return blocks of a simulated server that runs the original only."""
    server = SimulatedServer(GPU_BOUND, Swap(), seed=seed)
    return [(server.block(Arm.OFF, plan()), server.block(Arm.OFF, plan())) for _ in range(pairs)]


def feed(blocks: list[tuple[MeasuredBlock, MeasuredBlock]], *, seed: int) -> list[ProofState]:
    """Feed the same blocks whatever the coin says, and return the state after each pair."""
    settings = ProofSettings(long_blocks=0, pilot_pairs=10, harm_pairs=1000, confidence=1 - 1e-9)
    state, coin, states = begin(settings, at_s=0.0), random.Random(seed), []
    for at, pair in enumerate(blocks):
        state = next_pair(state, coin)
        first, second = (
            replace(b, steps=replace(b.steps, on=np.full(len(b.steps), arm is Arm.ON)))
            for b, arm in zip(pair, planned(state).runs, strict=True)
        )
        event = PairMeasured(planned(state).number, first, second, at_s=2.0 * at)
        state = step(state, event)
        states.append(state)
    return states


@pytest.mark.parametrize("changed", [12, 18, 33])
def test_fit_and_scale_of_a_pair_do_not_change_when_later_pairs_do(changed: int) -> None:
    blocks = blocks_of(45, seed=5)
    other = [
        pair if at < changed else (spoiled(pair[0], 1.3), spoiled(pair[1], 0.8))
        for at, pair in enumerate(blocks)
    ]
    one, two = feed(blocks, seed=2), feed(other, seed=2)
    before = changed - 1
    assert one[before] == two[before]
    assert one[before].fit == two[before].fit
    assert next_scale(one[before]) == next_scale(two[before])
    assert one[changed].pairs[-1].scale == two[changed].pairs[-1].scale
    assert one[changed].pairs[-1].off.expected_s == two[changed].pairs[-1].off.expected_s
    assert one[changed].pairs[-1].d != two[changed].pairs[-1].d
    assert one[-1].fit != two[-1].fit


def spoiled(made: MeasuredBlock, by: float) -> MeasuredBlock:
    return replace(made, steps=replace(made.steps, period_s=made.steps.period_s * by))


def test_another_coin_flips_the_sign_of_the_first_pairs_only() -> None:
    """Until the first refit the size of a difference does not depend on coins."""
    blocks = blocks_of(17, seed=6)
    runs = [[pair.d for pair in feed(blocks, seed=seed)[-1].pairs[10:]] for seed in (1, 2, 3)]
    sizes = [[abs(d or 0.0) for d in run] for run in runs]
    assert sizes[0] == pytest.approx(sizes[1])
    assert sizes[0] == pytest.approx(sizes[2])
    assert len({tuple(np.sign(np.array(run, dtype=float))) for run in runs}) == 3


@given(by=st.floats(min_value=-0.5, max_value=1.4))
def test_the_difference_is_the_log_ratio_of_the_arms(by: float) -> None:
    """Below 2.5 times: from there on steps of 10 ms are slow, and count no further."""
    run = Run(SHORT.model_copy(update={"pilot_pairs": 4, "harm_pairs": 100}))
    exact = run.state.settings

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=0, noise=0.0, ratio=1.0 + by if arm is Arm.ON else 1.0)

    for _ in range(exact.pilot_pairs + 1):
        run.pair(make)
    assert run.state.pairs[-1].d == pytest.approx(np.log1p(by), abs=1e-9)


def test_gpu_time_has_a_difference_only_where_all_steps_have_it() -> None:
    run = Run()
    run.pilot()

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, busy=0.004 if arm is Arm.ON else 0.008)

    run.pair(make)
    found = run.state.pairs[-1].d_busy
    assert found is not None
    assert found == pytest.approx(-np.log(2.0), abs=0.05)
    run.pair(plain)
    assert run.state.pairs[-1].d_busy is None


def test_the_report_of_a_pair_names_its_plan() -> None:
    run = Run()
    run.state = next_pair(run.state, run.coin)
    first = planned(run.state).first
    run.state = step(run.state, measured(run.state, plain, at_s=2.0))
    assert run.state.pilot[0].plan.first is first


@pytest.mark.parametrize(("kind", "counts"), [(PairKind.SHORT, False), (PairKind.LONG, True)])
def test_a_stall_counts_in_full_in_long_blocks_only(kind: PairKind, *, counts: bool) -> None:
    steps = block(Arm.ON, stalls=1, stall_s=0.3).steps
    expected_s = np.full(60, STEP_S)
    on = arm_sums(steps, expected_s, wall_s=1.0)
    off = arm_sums(block(Arm.OFF).steps, expected_s, wall_s=1.0)
    assert (on.slow, off.excess_s) == (1, 0.0)
    assert on.excess_s == pytest.approx(0.3 + STEP_S - 0.025, rel=0.01)
    d = result_of(plan(kind=kind), on, off, scale=0.01).d
    assert d is not None
    assert (d > 0.3) is counts
    assert counts or d < 0.03
