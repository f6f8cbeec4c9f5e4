"""A verdict that a node reports is computed again from its pairs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stages.watch_proof.blocks import SHORT, Run, slower

from retuned.stages.watch.own_overhead import SETTINGS as COST
from retuned.stages.watch.proof import (
    DAY_S,
    Arm,
    Interrupted,
    KernelTime,
    PairKind,
    PairResult,
    Phase,
    ProofClaim,
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
    next_pair,
    replay,
    replay_day,
    step,
)

KERNELS = (
    KernelTime(lengths=(512, 7), launches=8.0, off_s=2.4e-3, on_s=1.2e-3),
    KernelTime(lengths=(3, 1), launches=0.1, off_s=5e-6),
)
LONG = ProofSettings(long_blocks=4, long_within_s=3600.0)


def claim_of(state: ProofState, **changes: Any) -> ProofClaim:
    report = state.report
    assert report is not None
    claim = ProofClaim(
        verdict=report.verdict,
        reason=report.reason,
        pairs=state.pairs,
        pilot_huge=state.pilot_huge,
        seconds=report.seconds,
        kernels=state.kernels,
    )
    return ProofClaim.model_validate_json(claim.model_copy(update=changes).model_dump_json())


def proven(by: float, rule: ProofSettings = SHORT, *, seed: int = 1) -> ProofState:
    run = Run(rule, seed=seed)
    run.pilot()
    return run.until_done(slower(by))


@pytest.mark.parametrize("by", [-0.03, 0.03, 0.0])
def test_times_of_the_kernel_in_place_are_in_the_account_and_in_no_verdict(by: float) -> None:
    state = proven(by)
    plain = replay(claim_of(state), SHORT)
    found = replay(claim_of(state, kernels=KERNELS), SHORT)
    assert found.account.kernels == KERNELS
    assert found.account.kernel_s == pytest.approx(8.0 * -1.2e-3)
    assert (plain.account.kernels, plain.account.kernel_s) == ((), None)
    parts = {"kernels", "kernel_s", "launches", "host_per_launch_s", "elsewhere"}
    one, other = (each.model_dump() for each in (plain, found))
    for body in (one, other):
        body["account"] = {k: v for k, v in body["account"].items() if k not in parts}
    assert one == other


def test_a_claim_without_kernels_is_written_as_older_sides_write_it() -> None:
    claim = claim_of(proven(-0.03))
    assert "kernels" not in claim.model_dump_json()
    assert "kernels" not in claim.model_dump(mode="json")
    told = claim.model_copy(update={"kernels": KERNELS})
    assert ProofClaim.model_validate_json(told.model_dump_json(), strict=True) == told


@pytest.mark.parametrize("by", [-0.03, 0.03, 0.0, 0.2])
def test_an_honest_report_is_computed_again_to_the_last_bit(by: float) -> None:
    state = proven(by)
    assert replay(claim_of(state), SHORT) == state.report


def test_long_blocks_are_computed_again() -> None:
    state = proven(-0.03, LONG)
    assert state.of(PairKind.LONG)
    assert replay(claim_of(state), LONG) == state.report


@given(at=st.floats(-0.05, 0.05), seed=st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_every_honest_report_is_accepted(at: float, seed: int) -> None:
    state = proven(at, seed=seed)
    assert replay(claim_of(state), SHORT) == state.report


def pressed(pauses: int) -> ProofState:
    """Return the state after so many pauses, each of which cut a pair short."""
    run = Run(SHORT, seed=1)
    run.pilot()
    state = run.state
    for _ in range(pauses):
        state = next_pair(state, random.Random(1))
        state = step(state, ServiceLevel(met=False, at_s=state.began_s + 70.0))
        for at_s in (80.0, 80.0 + SHORT.slo_clear_s):
            state = step(state, ServiceLevel(met=True, at_s=state.began_s + at_s))
    return state


def test_the_pauses_that_end_a_proof_are_computed_again() -> None:
    state = pressed(SHORT.max_pauses)
    assert state.report is not None
    assert state.report.reason is ProofReason.SLO_PRESSURE
    assert replay(claim_of(state), SHORT) == state.report


def test_pauses_that_no_pair_shows_are_refused() -> None:
    pairs = pressed(SHORT.max_pauses).pairs[:-1]
    claim = ProofClaim(
        verdict=Verdict.TOO_LITTLE_TRAFFIC, reason=ProofReason.SLO_PRESSURE, pairs=pairs
    )
    with pytest.raises(ValueError, match="too few for its pauses"):
        replay(claim, SHORT)


@pytest.mark.parametrize("pairs", [0, 2])
def test_time_that_is_over_is_computed_again(pairs: int) -> None:
    run = Run(SHORT, seed=1)
    run.pilot()
    for _ in range(pairs):
        run.pair(slower(0.0))
    state = step(run.state, Tick(at_s=run.state.began_s + SHORT.max_duration_s))
    assert state.done
    assert replay(claim_of(state), SHORT) == state.report


def test_a_time_that_is_over_in_the_pilot_is_computed_again() -> None:
    run = Run(ProofSettings(), seed=1)
    for _ in range(5):
        run.pair(slower(0.0))
    state = step(run.state, Tick(at_s=run.state.began_s + run.state.settings.max_duration_s))
    assert state.done
    assert replay(claim_of(state), ProofSettings()) == state.report


@pytest.mark.parametrize("phase", [Phase.PILOT, Phase.SHORT, Phase.LONG])
def test_an_interruption_is_the_nodes_word(phase: Phase) -> None:
    run = Run(LONG, seed=1)
    while run.state.phase is not phase or run.state.planned < 3:
        run.pair(slower(-0.03))
    state = step(run.state, Interrupted(at_s=1e6))
    found = replay(claim_of(state, seconds=0.0), LONG)
    assert state.report is not None
    assert found == state.report.model_copy(update={"seconds": 0.0})


@pytest.mark.parametrize("phase", [Phase.PILOT, Phase.SHORT, Phase.LONG])
def test_a_swap_that_the_server_took_back_is_the_nodes_word(phase: Phase) -> None:
    run = Run(LONG, seed=1)
    while run.state.phase is not phase or run.state.planned < 3:
        run.pair(slower(-0.03))
    state = step(run.state, Vetoed(at_s=1e6))
    found = replay(claim_of(state, seconds=0.0), LONG)
    assert (found.verdict, found.reason) == (Verdict.HARMS, ProofReason.ERRORS)
    message = contradiction(state, LONG, reason=ProofReason.SHAPE_WORSE)
    assert "shape-worse" in message


def contradiction(state: ProofState, rule: ProofSettings = SHORT, **changes: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        replay(claim_of(state, **changes), rule)
    return str(caught.value)


def test_a_node_that_lies_about_its_verdict_is_contradicted() -> None:
    harmed = proven(0.03)
    said = contradiction(harmed, verdict=Verdict.HELPS, reason=ProofReason.FASTER)
    assert said == "its pairs lead to harms (slower), not to helps (faster)"
    unsure = harmed.pairs[:-1]
    harm: dict[str, Any] = {"verdict": Verdict.HARMS, "reason": ProofReason.SLOWER}
    assert "too-little-traffic" in contradiction(harmed, pairs=unsure, **harm)
    more = (*harmed.pairs, harmed.pairs[-1].model_copy(update={"number": 10_000}))
    assert "after a verdict" in contradiction(harmed, pairs=more)


def test_a_node_that_leaves_pairs_out_of_order_is_contradicted() -> None:
    helped = proven(-0.03)
    assert "not in order" in contradiction(helped, pairs=(helped.pairs[1], helped.pairs[0]))
    real = tuple(pair for pair in helped.pairs if not pair.sham)
    assert "pilot has 0 pairs" in contradiction(helped, pairs=real)


def altered(state: ProofState, **changes: Any) -> tuple[PairResult, ...]:
    """Return the pairs with other sums of the last block with the swap."""
    last = state.pairs[-1]
    sums = last.on.model_copy(update=changes)
    return (*state.pairs[:-1], last.model_copy(update={"on": sums}))


def test_differences_that_a_node_reports_are_not_used() -> None:
    harmed = proven(0.03)
    better = tuple(
        pair.model_copy(update={"d": -0.2, "scale": 1e-3}) if pair.void is None else pair
        for pair in harmed.pairs
    )
    assert replay(claim_of(harmed, pairs=better), SHORT) == harmed.report


@pytest.mark.parametrize(
    "sums",
    [
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": 1e300},
        {"expected_s": 1e-300},
        {"busy_s": 0.0},
        {"slow": 10**400},
        {"wall_s": -1.0},
        {"host_s": 1e200},
        {"steps": 1},
    ],
)
def test_numbers_that_no_block_has_are_refused(sums: dict[str, Any]) -> None:
    helped = proven(-0.03)
    assert "pair" in contradiction(helped, pairs=altered(helped, **sums))


def test_void_pairs_may_have_no_other_numbers_than_blocks_have() -> None:
    helped = proven(-0.03)
    void = helped.pairs[-1].model_copy(
        update={
            "void": VoidReason.FEW_STEPS,
            "on": helped.pairs[-1].on.model_copy(update={"wall_s": 1e300}),
        }
    )
    assert "no block has" in contradiction(helped, pairs=(*helped.pairs[:-1], void))


def test_more_pairs_than_the_time_allows_are_refused_before_they_are_computed() -> None:
    helped = proven(-0.03)
    last = helped.pairs[-1]
    many = tuple(last.model_copy(update={"number": n}) for n in range(4096))
    assert "more than its time allows" in contradiction(helped, pairs=many)


def test_a_pair_of_another_phase_is_refused() -> None:
    helped = proven(-0.03)
    last = helped.pairs[-1].model_copy(update={"kind": PairKind.LONG})
    assert "long in the short phase" in contradiction(helped, pairs=(*helped.pairs[:-1], last))


def test_void_pairs_bet_nothing() -> None:
    helped = proven(-0.03)
    void = PairResult(
        number=helped.pairs[-1].number + 1,
        kind=PairKind.SHORT,
        first=helped.pairs[-1].first,
        void=VoidReason.FEW_STEPS,
    )
    swapped = (*helped.pairs[:-1], void.model_copy(update={"number": helped.pairs[-1].number}))
    assert "too-little-traffic" in contradiction(helped, pairs=swapped)


def test_another_rule_leads_to_another_verdict() -> None:
    helped = proven(-0.03)
    stricter = SHORT.model_copy(update={"long_blocks": 4})
    assert contradiction(helped, stricter).startswith("its pairs lead to helps (few-steps)")


def test_a_report_is_final_only_as_the_pairs_are() -> None:
    run = Run(LONG, seed=1)
    while run.state.phase is not Phase.LONG:
        run.pair(slower(-0.03))
    state = step(run.state, Tick(at_s=1e9))
    found: ProofReport = replay(claim_of(state, seconds=0.0), LONG)
    assert (found.verdict, found.reason, found.final) == (
        Verdict.HELPS,
        ProofReason.FEW_STEPS,
        False,
    )


def day(by: float, pairs: int, *, seed: int = 1) -> tuple[ProofState, ProofSettings]:
    """Return a day of a sentinel with so many pairs, after a proof."""
    rule = SHORT.model_copy(update={"long_blocks": 0, "max_duration_s": DAY_S})
    run = Run(SHORT, seed=seed)
    run.pilot()
    run.until_done(slower(-0.03))
    began_s = run.state.began_s
    run.state = begin_again(run.state, rule, at_s=began_s, sentinel=True)
    for _ in range(pairs):
        if not run.state.done:
            run.pair(slower(by))
    return step(run.state, Tick(at_s=began_s + DAY_S)), rule


@pytest.mark.parametrize(("by", "pairs"), [(-0.03, 20), (0.08, 20), (0.0, 3), (0.0, 0)])
def test_a_day_of_a_sentinel_is_computed_again(by: float, pairs: int) -> None:
    state, rule = day(by, pairs)
    assert state.report is not None
    assert (state.report.verdict is Verdict.HARMS) is (by > 0.0)
    found = replay_day(claim_of(state), rule)
    assert found.model_copy(update={"seconds": 0.0}) == state.report.model_copy(
        update={"seconds": 0.0}
    )


def test_harm_that_the_pairs_of_a_day_do_not_show_is_refused() -> None:
    state, rule = day(0.0, 6)
    lie = claim_of(state, verdict=Verdict.HARMS, reason=ProofReason.SLOWER)
    with pytest.raises(ValueError, match="its pairs lead to"):
        replay_day(lie, rule)


def test_a_day_without_the_sham_pairs_of_a_proof_is_refused() -> None:
    state, rule = day(0.08, 20)
    few = tuple(pair for pair in state.pairs if not pair.sham)
    with pytest.raises(ValueError, match="0 sham pairs"):
        replay_day(claim_of(state, pairs=few), rule)


def test_pairs_of_turns_are_shorter_than_blocks_and_may_be_more() -> None:
    cut = tuple(
        PairResult(number=n, kind=PairKind.SHAM, first=Arm.ON, void=VoidReason.ABANDONED)
        for n in range(900)
    )
    claim = ProofClaim(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.INTERRUPTED, pairs=cut)
    assert replay(claim, COST).reason is ProofReason.INTERRUPTED
    with pytest.raises(ValueError, match="more than its time allows"):
        replay(claim, COST.model_copy(update={"turn_steps": 0}))
