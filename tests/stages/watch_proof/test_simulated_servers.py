"""Error rates and power of whole proofs on simulated servers.

Counts on which a test rests are those of ``benchmarks/live_proof.py``; seeds are fixed, so that a
test cannot fail by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

import pytest
from benchmarks.live_proof_sim import (
    GPU_BOUND,
    HOST_ONLY,
    SERVERS,
    Server,
    SimulatedServer,
    Swap,
    run_pair,
    run_proof,
)
from tests.stages.watch_proof.blocks import SHORT, Run

from retuned.stages.watch.proof import (
    PairKind,
    ProofReason,
    ProofReport,
    ProofSettings,
    ProofState,
    Verdict,
    VoidReason,
    consequence,
    predict,
)

pytestmark = pytest.mark.slow
LONG_LOOK = SHORT.model_copy(update={"max_duration_s": 420.0})


def reports(
    server: Server, swap: Swap, *, seeds: Iterable[int], settings: ProofSettings = SHORT
) -> list[ProofReport]:
    states = [run_proof(server, swap, seed=seed, settings=settings) for seed in seeds]
    return [state.report for state in states if state.report is not None]


def verdicts(found: list[ProofReport]) -> Counter[Verdict]:
    return Counter(report.verdict for report in found)


@pytest.mark.timeout(600)
def test_servers_without_effect_have_at_most_one_per_cent_of_false_verdicts() -> None:
    # The first of the 1,000 of benchmarks/live_proof.py, which take minutes.
    found = verdicts(reports(GPU_BOUND, Swap(), seeds=range(200)))
    assert found[Verdict.HELPS] <= 2
    assert found[Verdict.HARMS] <= 2
    assert found[Verdict.NO_MEASURABLE_EFFECT] >= 196


@pytest.mark.parametrize("kind", ["gpu-bound", "trend", "periodic-jobs"])
def test_servers_without_effect_show_none(kind: str) -> None:
    found = verdicts(reports(SERVERS[kind], Swap(), seeds=range(25), settings=LONG_LOOK))
    assert found[Verdict.HELPS] + found[Verdict.HARMS] <= 2
    assert found[Verdict.NO_MEASURABLE_EFFECT] >= 22


@pytest.mark.parametrize("kind", ["host-bound", "bursts"])
def test_noisy_servers_without_effect_show_no_false_one(kind: str) -> None:
    found = verdicts(reports(SERVERS[kind], Swap(), seeds=range(10), settings=LONG_LOOK))
    assert found[Verdict.HELPS] + found[Verdict.HARMS] <= 1
    assert found[Verdict.NOT_CONCLUDED] <= 1


@pytest.mark.parametrize(("effect", "right"), [(-0.02, Verdict.HELPS), (0.02, Verdict.HARMS)])
def test_two_per_cent_are_found_within_two_minutes(effect: float, right: Verdict) -> None:
    found = reports(GPU_BOUND, Swap(gpu=effect), seeds=range(60))
    assert verdicts(found) == {right: 60}
    assert max(report.seconds for report in found) <= 120.0
    middle = sorted(report.effect or 0.0 for report in found)[30]
    assert middle == pytest.approx(effect, abs=0.003)


@pytest.mark.parametrize(
    ("effect", "right", "wrong"),
    [(-0.005, Verdict.HELPS, Verdict.HARMS), (0.005, Verdict.HARMS, Verdict.HELPS)],
)
def test_half_a_per_cent_is_found_within_ten_minutes(
    effect: float, right: Verdict, wrong: Verdict
) -> None:
    found = reports(GPU_BOUND, Swap(gpu=effect), seeds=range(40))
    quick = [each for each in found if each.verdict is right and each.seconds <= 600.0]
    assert len(quick) >= 36
    assert verdicts(found)[wrong] == 0


def test_a_small_gain_never_harms() -> None:
    found = verdicts(reports(GPU_BOUND, Swap(gpu=-0.001), seeds=range(40)))
    assert found[Verdict.HARMS] == 0


def test_a_faster_kernel_behind_a_slow_host_has_no_measurable_effect() -> None:
    settings = SHORT.model_copy(update={"min_effect": 0.01})
    states = [
        run_proof(HOST_ONLY, Swap(gpu=-0.5), seed=seed, settings=settings) for seed in range(6)
    ]
    for state in states:
        report = state.report
        assert report is not None
        assert report.verdict is Verdict.NO_MEASURABLE_EFFECT
        assert report.evidence.busy_faster > state.settings.log_bound  # and it did not decide
        assert report.account.host_bound
        assert consequence(report, settings).value == "withdraw"
        share = state.pace.share
        assert share is not None
        before = predict(0.14, 2.0, gpu_bound=share, min_effect=settings.min_effect)
        assert before.host_bound
        assert not before.worth_a_proof


def test_a_dearer_launch_harms_within_twenty_seconds() -> None:
    found = reports(HOST_ONLY, Swap(gpu=-0.5, host=0.45), seeds=range(20))
    assert verdicts(found) == {Verdict.HARMS: 20}
    assert max(report.seconds for report in found) <= 20.0
    assert all(report.account.host_s or 0.0 > 0.0 for report in found)


def test_rare_stalls_behind_a_faster_mean_are_vetoed() -> None:
    stalls = Swap(gpu=-0.01, stalls=0.002)
    found = reports(GPU_BOUND, stalls, seeds=range(20), settings=ProofSettings())
    assert verdicts(found)[Verdict.HELPS] == 0
    assert Counter(each.reason for each in found)[ProofReason.SLOW_STEPS] >= 19


def test_a_swap_that_helps_is_final_after_long_blocks() -> None:
    found = reports(GPU_BOUND, Swap(gpu=-0.03), seeds=range(6), settings=ProofSettings())
    assert verdicts(found) == {Verdict.HELPS: 6}
    for report in found:
        assert report.final
        assert report.reason is ProofReason.FASTER
        assert report.low is not None
        assert report.high is not None
        assert report.low < -0.03 < report.high < 0.0
    effects = [report.effect for report in found if report.effect is not None]
    assert median(effects) == pytest.approx(-0.03, abs=0.006)


def quiet(requests_per_s: float, swap: Swap, *, seed: int) -> ProofState:
    server = replace(GPU_BOUND, requests_per_s=requests_per_s)
    return run_proof(server, swap, seed=seed, settings=SHORT)


@pytest.mark.parametrize("requests_per_s", [0.02, 0.005])
def test_a_server_with_few_requests_has_too_little_traffic(requests_per_s: float) -> None:
    states = [quiet(requests_per_s, Swap(), seed=seed) for seed in range(10)]
    found = [state.report for state in states if state.report is not None]
    assert verdicts(found)[Verdict.TOO_LITTLE_TRAFFIC] >= 9
    assert verdicts(found)[Verdict.HELPS] + verdicts(found)[Verdict.HARMS] == 0
    for state in states:
        idle = [pair for pair in state.pairs if pair.void is VoidReason.FEW_STEPS]
        assert idle
        assert all(pair.d is None for pair in idle)


def test_too_little_traffic_comes_with_what_could_be_shown() -> None:
    made = [quiet(0.02, Swap(), seed=seed).report for seed in range(10)]
    shown = [report.visible for report in made if report and report.visible]
    assert len(shown) >= 9
    assert min(shown) > SHORT.min_effect


def test_a_quiet_server_still_shows_a_big_effect() -> None:
    states = [quiet(0.2, Swap(gpu=-0.02), seed=seed) for seed in range(10)]
    found = [state.report for state in states if state.report is not None]
    assert verdicts(found)[Verdict.HELPS] >= 9
    assert verdicts(found)[Verdict.HARMS] == 0


def test_the_result_does_not_depend_on_restarts_of_the_daemon() -> None:
    ends = []
    for restarts in (False, True):
        run = Run(SHORT)
        server = SimulatedServer(GPU_BOUND, Swap(gpu=-0.01), seed=4)
        while not run.state.done:
            run.state = run_pair(run.state, server, run.coin)
            if restarts:
                run.state = ProofState.model_validate_json(run.state.model_dump_json())
        ends.append(run.state)
    assert ends[0] == ends[1]
    assert len(ends[0].of(PairKind.SHAM)) == 30


OVERHEAD = ProofSettings(ask="ceiling", min_effect=0.01, long_blocks=0)


@pytest.mark.parametrize("cost", [0.001, 0.003, 0.006])
def test_a_cost_below_one_per_cent_is_shown_to_be_below_it(cost: float) -> None:
    found = reports(GPU_BOUND, Swap(gpu=cost), seeds=range(20), settings=OVERHEAD)
    assert verdicts(found) == {Verdict.NO_MEASURABLE_EFFECT: 20}
    assert all(report.high is not None and report.high <= 0.01 for report in found)
    assert max(report.seconds for report in found) <= 400.0


def test_a_cost_above_one_per_cent_is_never_shown_to_be_below_it() -> None:
    found = reports(GPU_BOUND, Swap(gpu=0.012, host=0.012), seeds=range(20), settings=OVERHEAD)
    assert verdicts(found)[Verdict.NO_MEASURABLE_EFFECT] == 0
    assert verdicts(found)[Verdict.HARMS] >= 15
