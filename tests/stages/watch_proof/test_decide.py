"""The fold: from events to a verdict, at every point of a proof."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.expect import raises_naming
from tests.stages.watch_proof.blocks import (
    SHORT,
    Make,
    Run,
    block,
    measured,
    planned,
    slower,
)

from retuned.stages.watch.proof import (
    Arm,
    Consequence,
    Event,
    EvidenceLogs,
    Interrupted,
    KernelsMeasured,
    KernelTime,
    MeasuredBlock,
    PairAbandoned,
    PairKind,
    Phase,
    ProofReason,
    ProofReport,
    ProofSettings,
    ProofState,
    ServiceLevel,
    Tick,
    Verdict,
    Vetoed,
    VoidReason,
    begin_again,
    consequence,
    next_pair,
    percent_of,
    step,
)
from retuned.stages.watch.proof.evidence import SLOWER, log_e

FULL = ProofSettings()


def outcome(state: ProofState) -> tuple[Verdict, ProofReason, bool]:
    assert state.report is not None
    return state.report.verdict, state.report.reason, state.report.final


def after_pilot(settings: ProofSettings = SHORT, *, seed: int = 1) -> Run:
    run = Run(settings, seed=seed)
    run.pilot()
    assert run.state.phase is Phase.SHORT
    return run


def long_run(settings: ProofSettings = FULL) -> Run:
    """Return a proof in its long blocks."""
    run = after_pilot(settings)
    while run.state.phase is Phase.SHORT:
        run.pair(slower(-0.03))
    assert run.state.phase is Phase.LONG
    return run


def test_a_faster_swap_helps() -> None:
    run = after_pilot()
    state = run.until_done(slower(-0.03))
    assert outcome(state) == (Verdict.HELPS, ProofReason.FASTER, True)
    report = state.report
    assert report is not None
    assert report.effect == pytest.approx(-0.03, abs=0.01)
    assert report.pairs == len(state.of(PairKind.SHORT)) <= 20
    assert report.seconds == 2.0 * report.pairs
    assert report.exposed_s == 1.0 * report.pairs
    assert report.evidence.faster >= SHORT.log_bound > report.evidence.slower


def test_a_slower_swap_harms() -> None:
    state = after_pilot().until_done(slower(0.02))
    assert outcome(state)[:2] == (Verdict.HARMS, ProofReason.SLOWER)
    pairs = state.of(PairKind.SHORT)
    d, scales = [pair.d or 0.0 for pair in pairs], [pair.scale or 0.0 for pair in pairs]
    assert log_e(d, scales, m=0.0, side=SLOWER) >= SHORT.log_bound
    assert log_e(d[:-1], scales[:-1], m=0.0, side=SLOWER) < SHORT.log_bound


def test_no_effect_is_within_the_margin() -> None:
    state = after_pilot(SHORT.model_copy(update={"min_effect": 0.02})).until_done()
    assert outcome(state)[:2] == (Verdict.NO_MEASURABLE_EFFECT, ProofReason.WITHIN_MARGIN)
    assert state.report is not None
    assert state.report.low is not None
    assert state.report.high is not None
    assert -0.02 <= state.report.low < state.report.high <= 0.02


def test_a_big_harm_stops_after_six_pairs() -> None:
    state = after_pilot().until_done(slower(0.10))
    assert outcome(state)[:2] == (Verdict.HARMS, ProofReason.SLOWER)
    assert len(state.of(PairKind.SHORT)) == 6
    assert state.capitals.slower.log_e < state.settings.log_bound  # before any proof


def test_the_row_of_six_may_begin_late() -> None:
    run = after_pilot(SHORT.model_copy(update={"confidence": 1.0 - 1e-12}))
    for by in (0.0, 0.10, 0.0, 0.0):
        run.pair(slower(by))
    state = run.until_done(slower(0.10))
    assert len(state.of(PairKind.SHORT)) == 10


@pytest.mark.parametrize(("first", "pairs"), [(5, None), (6, 6)])
def test_the_stop_needs_six_pairs_in_a_row(first: int, pairs: int | None) -> None:
    run = after_pilot(SHORT.model_copy(update={"confidence": 1.0 - 1e-12}))
    for _ in range(first):
        run.pair(slower(0.10))
    if pairs is None:
        run.pair(slower(0.0))
        for _ in range(5):
            run.pair(slower(0.10))
        assert not run.state.done
    else:
        assert len(run.state.of(PairKind.SHORT)) == pairs
        assert run.state.done


def test_a_harm_within_the_noise_does_not_stop_at_once() -> None:
    def noisy(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, noise=0.06, ratio=1.15 if arm is Arm.ON else 1.0)

    run = Run(SHORT.model_copy(update={"confidence": 1.0 - 1e-12, "max_scale": 1.0}))
    for _ in range(42):
        run.pair(noisy)
    assert not run.state.done


def stalled(share_of_pairs: int) -> Make:
    """Return blocks that are faster with the swap, and stall in some of them."""

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        on = arm is Arm.ON
        stalls = 3 if on and (seed // 2) % share_of_pairs == 0 else 0
        ratio = 0.970 if on else 1.0  # three stalls of 50 ms in 6 s are 2.5 %
        return block(arm, seed=seed, noise=0.003, ratio=ratio, stalls=stalls, count=600)

    return make


def test_slow_steps_veto_a_faster_mean() -> None:
    state = after_pilot().until_done(stalled(1))
    assert outcome(state)[:2] == (Verdict.HARMS, ProofReason.SLOW_STEPS)


def test_rare_stalls_of_both_arms_do_not_hide_a_gain() -> None:
    """The demo on two cores: garbage is collected in one block of seven, for 250 ms."""

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        stalls = int(random.Random(seed).random() < 1 / 7)
        ratio = 0.92 if arm is Arm.ON else 1.0
        return block(
            arm, seed=seed, noise=0.025, ratio=ratio, stalls=stalls, stall_s=0.25, count=100
        )

    run = Run()
    while run.state.phase is Phase.PILOT:
        run.pair(make)
    state = run.until_done(make)
    assert outcome(state)[:2] == (Verdict.HELPS, ProofReason.FASTER)
    assert len(state.of(PairKind.SHORT)) <= 16
    assert any(pair.on.excess_s or pair.off.excess_s for pair in state.of(PairKind.SHORT))


def test_without_long_blocks_stalls_that_use_up_the_gain_are_no_help() -> None:
    """Steps are 1 % faster, and each block with the swap has one slow step, as the original's."""

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        on = arm is Arm.ON
        stall_s = 0.060 if on else 0.030
        return block(
            arm, seed=seed, noise=0.001, ratio=0.99 if on else 1.0, stalls=1, stall_s=stall_s
        )

    run = Run(SHORT.model_copy(update={"max_duration_s": 200.0}))
    while run.state.phase is Phase.PILOT:
        run.pair(lambda label, arm, seed: block(arm, seed=seed, noise=0.001))
    state = run.until_done(make)
    assert state.capitals.faster.log_e >= state.settings.log_bound
    assert outcome(state)[0] is not Verdict.HELPS


def test_huge_steps_with_the_swap_only_stop_the_proof() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, stalls=int(arm is Arm.ON), stall_s=0.5)

    state = after_pilot().until_done(make)
    assert outcome(state)[:2] == (Verdict.HARMS, ProofReason.SLOW_STEPS)
    assert len(state.of(PairKind.SHORT)) <= 4


def test_huge_steps_that_the_pilot_has_too_are_the_servers() -> None:
    """The first pairs have one in both blocks with the swap, and the pilot has some."""

    def sometimes(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, stalls=int(seed % 20 == 0), stall_s=0.5)

    run = Run()
    while run.state.phase is Phase.PILOT:
        run.pair(sometimes)
    assert run.state.pilot_huge > 0

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        early = arm is Arm.ON and len(run.state.of(PairKind.SHORT)) < 3
        return block(arm, seed=seed, stalls=int(early), stall_s=0.5)

    for _ in range(4):
        run.pair(make)
    assert not run.state.done


def test_huge_steps_of_both_arms_do_not() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, stalls=1, stall_s=0.5)

    assert outcome(after_pilot().until_done(make))[1] is not ProofReason.SLOW_STEPS


def test_sham_pairs_with_an_effect_end_the_proof() -> None:
    def broken(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, ratio=1.05 if label is Arm.ON else 1.0)

    run = Run()
    state = run.until_done(broken)
    assert outcome(state)[:2] == (Verdict.NOT_CONCLUDED, ProofReason.INSTRUMENT_BROKEN)
    assert state.of(PairKind.SHORT) == []


def test_steps_that_are_too_irregular_are_not_switchable() -> None:
    def wild(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, noise=0.5)

    assert outcome(Run().until_done(wild))[:2] == (
        Verdict.NOT_CONCLUDED,
        ProofReason.NOT_SWITCHABLE,
    )


def test_helps_is_not_final_until_long_blocks_agree() -> None:
    run = long_run()
    assert outcome(run.state) == (Verdict.HELPS, ProofReason.FASTER, False)
    assert run.state.swap_is_on
    state = next_pair(run.state, run.coin)
    assert planned(state).block_s == 10.0
    state = run.until_done(slower(-0.03))
    assert outcome(state) == (Verdict.HELPS, ProofReason.FASTER, True)
    assert len(state.of(PairKind.LONG)) == 20
    assert not state.swap_is_on


def test_long_blocks_report_another_size_as_carry_over() -> None:
    state = long_run().until_done(slower(-0.008))
    assert outcome(state) == (Verdict.HELPS, ProofReason.CARRY_OVER, True)
    assert state.report is not None
    assert state.report.effect == pytest.approx(-0.008, abs=0.006)


def test_long_blocks_that_show_harm_withdraw() -> None:
    state = long_run().until_done(slower(0.03))
    assert outcome(state) == (Verdict.HARMS, ProofReason.SLOWER, True)
    assert len(state.of(PairKind.LONG)) < 20
    assert state.report is not None
    assert (state.report.effect or 0.0) > 0.0


def test_long_blocks_find_stalls() -> None:
    state = long_run().until_done(stalled(2))
    assert outcome(state)[:2] == (Verdict.HARMS, ProofReason.SLOW_STEPS)


def test_a_faster_middle_with_a_slower_sum_does_not_help() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        on = arm is Arm.ON
        ratio = 0.99 if on else 1.0
        if on and (seed // 2) % 5 == 0:
            ratio = 1.20  # slower steps, and not one of them far over its expected time
        return block(arm, seed=seed, noise=0.003, ratio=ratio)

    state = long_run().until_done(make)
    assert outcome(state) == (Verdict.NO_MEASURABLE_EFFECT, ProofReason.SLOW_STEPS, True)


def test_long_blocks_that_do_not_come_leave_helps_not_final() -> None:
    run = long_run()
    state = step(run.state, Tick(run.now_s + 3599.0))
    assert not state.done
    state = step(state, Tick(run.now_s + 3601.0))
    assert state.done
    assert outcome(state) == (Verdict.HELPS, ProofReason.FEW_STEPS, False)


def test_a_wide_interval_at_the_end_is_too_little_traffic() -> None:
    def noisy(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, noise=0.05)

    run = Run(SHORT.model_copy(update={"max_duration_s": 200.0}))
    state = run.until_done(noisy)
    assert run.now_s == 200.0
    assert outcome(state)[:2] == (Verdict.TOO_LITTLE_TRAFFIC, ProofReason.NOISE)
    assert state.report is not None
    assert (state.report.visible or 0.0) > state.settings.min_effect


def test_a_narrow_interval_at_the_end_is_no_measurable_effect() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, noise=0.004, ratio=1.002 if arm is Arm.ON else 1.0)

    settings = SHORT.model_copy(update={"max_duration_s": 120.0, "min_effect": 0.004})
    state = Run(settings).until_done(make)
    assert outcome(state)[:2] == (Verdict.NO_MEASURABLE_EFFECT, ProofReason.NOT_SHOWN_IN_TIME)


def test_an_interval_that_is_narrow_on_one_side_is_too_little_traffic() -> None:
    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, noise=0.01, ratio=0.996 if arm is Arm.ON else 1.0)

    state = Run(SHORT.model_copy(update={"max_duration_s": 130.0})).until_done(make)
    assert state.report is not None
    assert state.report.low is not None
    assert state.report.high is not None
    assert state.report.low < -0.01 < 0.0 < state.report.high < 0.01
    assert outcome(state)[:2] == (Verdict.TOO_LITTLE_TRAFFIC, ProofReason.NOISE)


def test_a_server_that_idles_has_too_few_steps() -> None:
    def idle(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, count=1)

    run = Run(SHORT.model_copy(update={"max_duration_s": 60.0}))
    state = run.until_done(idle)
    assert outcome(state)[:2] == (Verdict.TOO_LITTLE_TRAFFIC, ProofReason.FEW_STEPS)
    assert all(pair.void is VoidReason.FEW_STEPS for pair in state.pairs)
    assert state.report is not None
    assert state.report.effect is None


def test_a_slow_pilot_ends_with_fewer_pairs() -> None:
    run = Run(SHORT.model_copy(update={"max_duration_s": 90.0}))
    for _ in range(15):
        run.pair()
    assert run.state.phase is Phase.SHORT
    assert len(run.state.of(PairKind.SHAM)) == 15


def test_time_passes_without_pairs() -> None:
    run = after_pilot()
    assert not step(run.state, Tick(1799.0)).done
    assert outcome(step(run.state, Tick(1800.0)))[:2] == (
        Verdict.TOO_LITTLE_TRAFFIC,
        ProofReason.FEW_STEPS,
    )


def test_the_pilot_forecasts_what_can_be_shown() -> None:
    state = after_pilot().state
    scale = state.pairs[0].scale
    assert scale is not None
    assert state.forecast == pytest.approx(6.0 * scale / 870.0**0.5)


POINTS: dict[str, Callable[[], Run]] = {
    "pilot": Run,
    "short": after_pilot,
    "long": long_run,
}
ENDINGS: list[tuple[Event, Verdict, ProofReason]] = [
    (Interrupted(70.0), Verdict.NOT_CONCLUDED, ProofReason.INTERRUPTED),
    (Vetoed(70.0), Verdict.HARMS, ProofReason.ERRORS),
    (Vetoed(70.0, ProofReason.SHAPE_WORSE), Verdict.HARMS, ProofReason.SHAPE_WORSE),
]


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("event", "verdict", "reason"), ENDINGS)
def test_errors_and_interruptions_end_any_phase_with_the_swap_off(
    point: str, running: bool, event: Event, verdict: Verdict, reason: ProofReason
) -> None:
    state = POINTS[point]().state
    if running:
        state = next_pair(state, Run().coin)
    state = step(state, event)
    assert outcome(state) == (verdict, reason, True)
    assert state.done
    assert not state.swap_is_on
    assert state.plan is None
    if running:
        assert state.pairs[-1].void is VoidReason.ABANDONED


def test_a_proof_that_is_done_does_not_change() -> None:
    state = after_pilot().until_done(slower(0.10))
    for event in (Interrupted(1e6), Vetoed(1e6), Tick(1e6), ServiceLevel(False, 1e6)):
        assert step(state, event) is state
    with pytest.raises(ValueError, match="between pairs"):
        next_pair(state, Run().coin)


def test_a_breach_of_service_levels_pauses_until_they_are_met_for_a_minute() -> None:
    run = after_pilot()
    state = next_pair(run.state, run.coin)
    state = step(state, ServiceLevel(False, 100.0))
    assert state.paused
    assert state.pairs[-1].void is VoidReason.ABANDONED
    assert state.capitals == run.state.capitals
    with pytest.raises(ValueError, match="between pairs"):
        next_pair(state, run.coin)
    state = step(state, ServiceLevel(True, 110.0))
    state = step(state, ServiceLevel(False, 160.0))
    state = step(state, ServiceLevel(True, 165.0))
    state = step(state, ServiceLevel(True, 224.0))
    assert state.paused
    state = step(state, ServiceLevel(True, 225.0))
    assert not state.paused
    assert state.pauses == 1
    assert next_pair(state, run.coin).plan is not None


def test_the_swap_is_off_in_a_pause_of_long_blocks() -> None:
    state = step(long_run().state, ServiceLevel(False, 100.0))
    assert not state.swap_is_on


def test_the_third_pause_ends_the_proof() -> None:
    state = after_pilot().state
    for at in (100.0, 300.0, 500.0):
        assert not state.done
        state = step(state, ServiceLevel(False, at))
        for later in (at + 1.0, at + 62.0):
            state = step(state, ServiceLevel(True, later))
    assert outcome(state)[:2] == (Verdict.TOO_LITTLE_TRAFFIC, ProofReason.SLO_PRESSURE)


def test_time_passes_in_a_pause() -> None:
    state = step(after_pilot().state, ServiceLevel(False, 100.0))
    assert step(state, ServiceLevel(False, 1801.0)).done


def test_a_restart_of_the_daemon_makes_the_running_pair_void() -> None:
    run = after_pilot()
    state = next_pair(run.state, run.coin)
    restored = ProofState.model_validate_json(state.model_dump_json())
    with raises_naming(ValueError, "pair 0"):
        step(restored, PairAbandoned(0, at_s=90.0))
    restored = step(restored, PairAbandoned(planned(restored).number, at_s=90.0))
    assert restored.plan is None
    assert restored.pairs[-1].void is VoidReason.ABANDONED
    assert planned(next_pair(restored, run.coin)).number == planned(state).number + 1


@pytest.mark.parametrize("by", [-0.03, 0.0])
def test_a_state_survives_json_at_every_point(by: float) -> None:
    settings = ProofSettings(pilot_pairs=8, long_blocks=5, min_effect=0.01, max_duration_s=200.0)
    straight, stored = Run(settings), Run(settings)
    points = 0
    while not straight.state.done:
        for run in (straight, stored):
            run.state = next_pair(run.state, run.coin)
        stored.state = ProofState.model_validate_json(stored.state.model_dump_json())
        for run in (straight, stored):
            run.now_s += 2.0
            run.state = step(run.state, measured(run.state, slower(by), at_s=run.now_s))
        stored.state = ProofState.model_validate_json(stored.state.model_dump_json())
        assert stored.state == straight.state
        points += 1
    assert points > 13
    assert stored.state.done


def test_a_stored_state_stays_small() -> None:
    settings = SHORT.model_copy(update={"confidence": 1.0 - 1e-15})
    run, sizes = Run(settings), []
    for _ in range(180):
        run.pair()
        sizes.append(len(run.state.model_dump_json()))
    assert max(sizes) < 256 * 1024
    assert run.state.rows.rows == ()  # not needed after the last fit


def test_kernels_measured_in_place_are_in_the_account() -> None:
    run = after_pilot()
    kernel = KernelTime(lengths=(8,), launches=200.0, off_s=5e-6, on_s=3e-6)
    run.state = step(run.state, KernelsMeasured((kernel,), at_s=61.0))
    report = run.until_done(slower(-0.03)).report
    assert report is not None
    assert report.account.kernel_s == pytest.approx(-0.0004)
    assert (report.account.launches, report.account.kernels) == (200.0, (kernel,))
    assert report.account.period_s == pytest.approx(-0.0003, abs=0.0001)


def report_of(
    verdict: Verdict, reason: ProofReason = ProofReason.NOISE, *, busy: float = 0.0
) -> ProofReport:
    return ProofReport(verdict=verdict, reason=reason, evidence=EvidenceLogs(busy_faster=busy))


@pytest.mark.parametrize(
    ("verdict", "attempts", "expected"),
    [
        (Verdict.HELPS, 1, Consequence.KEEP),
        (Verdict.HARMS, 1, Consequence.WITHDRAW),
        (Verdict.NO_MEASURABLE_EFFECT, 1, Consequence.WITHDRAW),
        (Verdict.TOO_LITTLE_TRAFFIC, 3, Consequence.PARK),
        (Verdict.TOO_LITTLE_TRAFFIC, 4, Consequence.WITHDRAW),
        (Verdict.NOT_CONCLUDED, 1, Consequence.WITHDRAW),
    ],
)
def test_what_a_verdict_asks_for(verdict: Verdict, attempts: int, expected: Consequence) -> None:
    assert consequence(report_of(verdict), FULL, attempts=attempts) is expected


def test_an_interrupted_proof_is_made_again() -> None:
    report = report_of(Verdict.NOT_CONCLUDED, ProofReason.INTERRUPTED)
    assert consequence(report, FULL) is Consequence.PARK
    assert consequence(report, FULL, attempts=4) is Consequence.WITHDRAW


def test_no_effect_is_kept_only_for_proven_gpu_time() -> None:
    keep = FULL.model_copy(update={"on_no_effect": "keep"})
    none = Verdict.NO_MEASURABLE_EFFECT
    assert consequence(report_of(none, busy=5.0), keep) is Consequence.KEEP
    assert consequence(report_of(none, busy=4.0), keep) is Consequence.WITHDRAW
    assert consequence(report_of(none, busy=5.0), FULL) is Consequence.WITHDRAW


@pytest.mark.parametrize("verdict", list(Verdict))
def test_observing_keeps(verdict: Verdict) -> None:
    observe = FULL.model_copy(update={"mode": "observe"})
    assert consequence(report_of(verdict), observe) is Consequence.KEEP


def test_an_effect_is_shown_in_per_cent() -> None:
    assert percent_of(0.019) == pytest.approx(1.918, abs=0.001)


def test_a_proof_begins_again_without_a_pilot() -> None:
    earlier = after_pilot().until_done(slower(-0.03))
    run = Run()
    run.state = begin_again(earlier, SHORT, at_s=100.0)
    run.now_s = 100.0
    assert run.state.phase is Phase.SHORT
    assert run.state.of(PairKind.SHORT) == []
    state = run.until_done(slower(0.03))
    assert outcome(state) == (Verdict.HARMS, ProofReason.SLOWER, True)
    report = state.report
    assert report is not None
    assert report.effect == pytest.approx(0.03, abs=0.01)
    assert report.pairs <= 20


def test_without_an_earlier_fit_it_begins_with_a_pilot() -> None:
    assert begin_again(None, SHORT, at_s=0.0).phase is Phase.PILOT
    assert begin_again(Run().state, SHORT, at_s=0.0).phase is Phase.PILOT


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_harm_withdraws_a_swap_that_was_kept(verdict: Verdict) -> None:
    report = ProofReport(verdict=verdict, reason=ProofReason.NOISE)
    harms = verdict is Verdict.HARMS
    expected = Consequence.WITHDRAW if harms else Consequence.KEEP
    assert consequence(report, FULL, kept=True) is expected
    observes = ProofSettings(mode="observe")
    assert consequence(report, observes, kept=True) is Consequence.KEEP
