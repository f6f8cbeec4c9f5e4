"""The two-stage detector: novelty, worth, adoption, latency, environment, and its bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_invalid, raises_naming

from retuned.stages.drift import (
    DEMO_SETTINGS,
    DetectorState,
    DriftAction,
    DriftCode,
    DriftReport,
    DriftSettings,
    adopt,
    compare,
    detect,
    learn,
)
from retuned.stages.profile import OTHER, Signature, SignatureStat, WorkloadProfile
from retuned.stats import cusum_threshold, jensen_shannon, medoids

S = 10**9
KERNELS = {"linear_w8": 9.0, "attention": 4.0, "rmsnorm": 0.5, "silu_mul": 0.8, "softmax": 0.7}
"""Kernels of the demo's server: microseconds per row, about."""
BUCKETS = (1, 2, 4, 8, 16, 64, 128, 256)
CHAT = (0.02, 0.05, 0.14, 0.40, 0.30, 0.05, 0.025, 0.015)
"""Share of engine steps by M: many small decodes, some prompt chunks."""
CODE = (0.04, 0.08, 0.12, 0.12, 0.08, 0.08, 0.16, 0.32)


def window(
    index: int,
    mix: tuple[float, ...],
    rng: np.random.Generator,
    *,
    steps: int = 150,
    slow: float = 1.0,
    layers: int = 4,
    seconds: float = 5.0,
    environment: str = "",
) -> WorkloadProfile:
    """One window of an engine: all launches of one step share M, as in a real server."""
    counts = rng.multinomial(steps, np.array(mix) / sum(mix))
    stats = []
    for kernel, row_us in KERNELS.items():
        for m, count in zip(BUCKETS, counts, strict=True):
            if count:
                noise = 1.0 + 0.02 * rng.standard_normal()
                each = max(1, round(slow * noise * 1e3 * (20 + row_us * m)))
                launches = int(count) * layers
                stats.append(
                    SignatureStat(
                        signature=Signature(kernel=kernel, dims=((m, 512), (512, 512))),
                        launches=launches,
                        gpu_time_ns=launches * each,
                        median_ns=each,
                    )
                )
    stats.sort(key=lambda s: -s.gpu_time_ns)
    return WorkloadProfile(
        window_start_ns=round(index * seconds * S),
        window_ns=round(seconds * S),
        observed_ns=round(seconds * S),
        stats=tuple(stats),
        environment=environment,
    )


def chat_state(rng: np.random.Generator, *, count: int = 5, environment: str = "") -> DetectorState:
    profiles = [window(i, CHAT, rng, environment=environment) for i in range(count)]
    return learn(profiles, settings=DEMO_SETTINGS)


def follow(
    state: DetectorState, profiles: list[WorkloadProfile], settings: DriftSettings = DEMO_SETTINGS
) -> tuple[list[DriftReport], DetectorState]:
    reports = []
    for profile in profiles:
        report, state = detect(profile, state=state, settings=settings)
        reports.append(report)
    return reports, state


def profile_of(
    shares: dict[str, float],
    *,
    start_s: float = 0.0,
    launches: int = 10_000,
    seconds: float = 600.0,
    environment: str = "",
) -> WorkloadProfile:
    """A window with exactly these shares; every signature has its dims."""
    stats = tuple(
        SignatureStat(
            signature=Signature(kernel=kernel, dims=((8, 64),)),
            launches=max(1, round(launches * share)),
            gpu_time_ns=round(share * S),
            median_ns=100_000,
        )
        for kernel, share in shares.items()
        if share > 0
    )
    return WorkloadProfile(
        window_start_ns=round(start_s * S),
        window_ns=round(seconds * S),
        observed_ns=round(seconds * S),
        stats=stats,
        environment=environment,
    )


# --- the demo: five-second windows, a handful of them as baseline -------------------------------


@pytest.mark.parametrize("baseline", [4, 5, 6])
def test_a_laptop_finds_code_traffic_within_three_windows_and_next_to_never_alarms_in_chat(
    baseline: int,
) -> None:
    late, false_alarms, retunes, windows = 0, 0, 0, 0
    for seed in range(40):
        rng = np.random.default_rng([seed, baseline])
        state = chat_state(rng, count=baseline)
        chat, state = follow(state, [window(i, CHAT, rng) for i in range(10, 30)])
        false_alarms += sum(report.detected for report in chat)
        windows += len(chat)
        code, _ = follow(state, [window(i, CODE, rng) for i in range(30, 33)])
        late += not any(report.detected for report in code)
        retunes += any(report.action is DriftAction.RETUNE for report in code)
    assert windows == 800
    assert false_alarms <= (3 if baseline == 4 else 0)
    assert late == 0
    assert retunes >= 38


def test_one_odd_window_is_not_drift() -> None:
    rng = np.random.default_rng(3)
    state = chat_state(rng)
    reports, _ = follow(
        state, [window(10, CODE, rng), window(11, CHAT, rng), window(12, CHAT, rng)]
    )
    assert [report.detected for report in reports] == [False, False, False]


def test_a_report_names_kernels_shapes_and_shares_before_and_after() -> None:
    rng = np.random.default_rng(4)
    reports, _ = follow(chat_state(rng), [window(i, CODE, rng) for i in range(10, 13)])
    report = next(r for r in reports if r.detected)
    top = report.reasons[0]
    assert top.code is DriftCode.SHARE_CHANGED
    assert top.kernel == "linear_w8"
    assert top.shape == "256x512, 512x512"
    assert top.share_after > top.share_before + 0.2
    assert "linear_w8 at 256x512, 512x512 rose from" in report.sentence
    assert DriftCode.NOVEL_MIX in [reason.code for reason in report.reasons]
    moves = [round(abs(r.share_after - r.share_before), 3) for r in report.reasons[:-1]]
    assert moves == sorted(moves, reverse=True)


def test_after_a_retune_the_new_mix_is_home() -> None:
    rng = np.random.default_rng(5)
    reports, state = follow(chat_state(rng), [window(i, CODE, rng) for i in range(10, 13)])
    assert any(report.action is DriftAction.RETUNE for report in reports)
    for index in range(13, 18):
        state = adopt(state, window(index, CODE, rng), tuned=True, settings=DEMO_SETTINGS)
    reports, _ = follow(state, [window(i, CODE, rng) for i in range(20, 35)])
    assert not any(report.action is DriftAction.RETUNE for report in reports)
    assert sum(report.detected for report in reports) == 0


@pytest.mark.parametrize("told", [False, True])
def test_a_kernel_made_faster_by_a_swap_is_no_drift_once_windows_after_it_were_adopted(
    told: bool,
) -> None:
    """Shares of all other kernels grow when one gets faster: whoever swaps has to say so."""

    def after_swap(index: int, speedup: float) -> WorkloadProfile:
        rng = np.random.default_rng([30, index])
        slow = window(index, CHAT, rng, steps=400)
        stats = tuple(
            stat.model_copy(
                update={
                    "gpu_time_ns": round(stat.gpu_time_ns / speedup),
                    "median_ns": round(stat.median_ns / speedup),
                }
            )
            if stat.signature.kernel == "linear_w8"
            else stat
            for stat in slow.stats
        )
        return slow.model_copy(update={"stats": stats})

    state = learn([after_swap(i, 1.0) for i in range(6)], settings=DEMO_SETTINGS)
    for index in range(6, 11) if told else ():
        state = adopt(state, after_swap(index, 4.0), tuned=True, settings=DEMO_SETTINGS)
    reports, _ = follow(state, [after_swap(i, 4.0) for i in range(11, 30)])
    assert any(report.detected for report in reports) is not told


def test_state_survives_json_and_gives_the_same_answers() -> None:
    rng = np.random.default_rng(6)
    state = chat_state(rng)
    _, state = follow(state, [window(10, CODE, rng)])
    copy = DetectorState.model_validate(json.loads(state.model_dump_json()))
    assert copy == state
    probe = window(11, CODE, rng)
    assert detect(probe, state=copy, settings=DEMO_SETTINGS) == detect(
        probe, state=state, settings=DEMO_SETTINGS
    )


def test_learning_is_a_function_of_profiles_settings_and_seed() -> None:
    profiles = [window(i, CHAT, np.random.default_rng([7, i])) for i in range(6)]
    first = learn(profiles, settings=DEMO_SETTINGS, seed=1)
    assert first == learn(list(reversed(profiles)), settings=DEMO_SETTINGS, seed=1)


def test_the_baseline_stays_as_it_was_learned_while_windows_pass() -> None:
    rng = np.random.default_rng(8)
    state = chat_state(rng)
    _, later = follow(state, [window(i, CHAT, rng) for i in range(10, 30)])
    assert later.classes == state.classes
    assert later.library == state.library
    assert [w.log_ns for w in later.latencies] == [w.log_ns for w in state.latencies]


@pytest.mark.parametrize("count", [0, 1])
def test_a_baseline_needs_two_windows(count: int) -> None:
    profiles = [window(i, CHAT, np.random.default_rng(i)) for i in range(count)]
    with raises_naming(ValueError, "baseline", "roll-ups"):
        learn(profiles, settings=DEMO_SETTINGS)


# --- stage one: new signatures ------------------------------------------------------------------

PLAIN = DriftSettings(rollup_windows=1, size_classes=(100,), uncovered_windows=1)


def plain_state(environment: str = "") -> DetectorState:
    return learn(
        [
            profile_of(
                {"gemm": 0.6 + wiggle, "rms": 0.4 - wiggle},
                start_s=600 * i,
                environment=environment,
            )
            for i, wiggle in enumerate((0.0, 0.004, -0.004, 0.002, -0.002, 0.001))
        ],
        settings=PLAIN,
    )


def at(index: int, shares: dict[str, float], **kwargs: object) -> WorkloadProfile:
    return profile_of(shares, start_s=600 * index, **kwargs)  # type: ignore[arg-type]


def test_a_new_signature_is_news_in_its_second_window() -> None:
    new = {"gemm": 0.59, "rms": 0.4, "moe": 0.01}
    reports, _ = follow(plain_state(), [at(9, new), at(10, new)], PLAIN)
    assert [r.detected for r in reports] == [False, True]
    assert reports[1].action is DriftAction.ADOPT
    found = next(r for r in reports[1].reasons if r.kernel == "moe")
    assert (found.code, found.share_before) == (DriftCode.NEW_SIGNATURE, 0.0)
    assert found.share_after == pytest.approx(0.01)
    assert "moe at 8x64 is new and takes 1.0 % of kernel time" in reports[1].sentence


def test_what_was_adopted_is_no_news_again() -> None:
    new = {"gemm": 0.59, "rms": 0.4, "moe": 0.01}
    reports, _ = follow(plain_state(), [at(i, new) for i in range(9, 20)], PLAIN)
    assert sum(r.detected for r in reports) == 1


def test_a_new_signature_of_no_weight_is_ignored() -> None:
    tiny = {"gemm": 0.598, "rms": 0.398, "moe": 0.004}
    reports, _ = follow(plain_state(), [at(i, tiny) for i in range(9, 15)], PLAIN)
    assert not any(r.detected for r in reports)


def test_the_folded_tail_is_never_new() -> None:
    tail = {"gemm": 0.58, "rms": 0.38, OTHER: 0.04}
    reports, _ = follow(plain_state(), [at(i, tail) for i in range(9, 15)], PLAIN)
    assert not any(r.detected for r in reports)
    assert reports[0].new_share == 0.0


# --- stage two: worth ---------------------------------------------------------------------------

MOVED = {"gemm": 0.45, "rms": 0.35, "moe": 0.20}


def test_uncovered_work_worth_more_than_an_experiment_asks_for_a_retune() -> None:
    reports, _ = follow(plain_state(), [at(9, MOVED), at(10, MOVED)], PLAIN)
    assert reports[1].action is DriftAction.RETUNE
    assert reports[1].uncovered_share == pytest.approx(0.2)
    assert reports[1].expected_saving == pytest.approx(0.2 * (1 - 1 / 1.1))


def test_an_experiment_that_costs_more_than_it_saves_is_not_asked_for() -> None:
    dear = PLAIN.model_copy(update={"experiment_gpu_s": 1e9})
    reports, _ = follow(plain_state(), [at(9, MOVED), at(10, MOVED)], dear)
    assert reports[1].action is DriftAction.ADOPT


def test_a_known_gain_of_nothing_asks_for_no_retune() -> None:
    state = plain_state()
    gains = {Signature(kernel="moe", dims=((8, 64),)): 1.0}
    for index in (9, 10):
        report, state = detect(at(index, MOVED), state=state, settings=PLAIN, gains=gains)
    assert (report.detected, report.action) == (True, DriftAction.ADOPT)


def test_frequencies_that_move_inside_tuned_shapes_are_adopted_not_tuned() -> None:
    state = learn(
        [
            at(i, {"gemm": share, "rms": 1 - share})
            for i, share in enumerate((0.5, 0.51, 0.49, 0.5))
        ],
        settings=PLAIN,
    )
    moved = {"gemm": 0.8, "rms": 0.2}
    reports, _ = follow(state, [at(i, moved) for i in (9, 10)], PLAIN)
    assert [r.action for r in reports] == [DriftAction.NONE, DriftAction.ADOPT]
    assert reports[1].uncovered_share == 0.0


def test_a_side_case_that_becomes_the_main_one_is_uncovered() -> None:
    state = learn(
        [at(i, {"gemm": 0.98 - w, "rms": 0.02 + w}) for i, w in enumerate((0, 0.001, -0.001, 0))],
        settings=PLAIN,
    )
    report, _ = detect(at(9, {"gemm": 0.3, "rms": 0.7}), state=state, settings=PLAIN)
    assert report.uncovered_share == pytest.approx(0.7 - PLAIN.covered_growth * 0.021, abs=1e-3)


def test_uncovered_work_that_was_adopted_too_early_is_still_tuned_for_later() -> None:
    settings = PLAIN.model_copy(update={"uncovered_windows": 3})
    little = {"gemm": 0.56, "rms": 0.38, "moe": 0.06}
    reports, _ = follow(plain_state(), [at(i, little) for i in range(9, 14)], settings)
    actions = [r.action for r in reports if r.action is not DriftAction.NONE]
    assert DriftAction.RETUNE in actions


def test_retunes_keep_their_cool_down_and_the_limit_of_the_day() -> None:
    state = plain_state()
    retunes = []
    for index in range(9, 9 + 6 * 48):
        name = f"moe{index // 12}"
        shares = {"gemm": 0.45, "rms": 0.35, name: 0.20}
        report, state = detect(at(index, shares), state=state, settings=PLAIN)
        if report.action is DriftAction.RETUNE:
            retunes.append(index)
    gaps_s = np.diff(retunes) * 600
    assert len(retunes) >= 3
    assert (gaps_s >= PLAIN.cooldown_s).all()
    for index in retunes:
        assert sum(0 <= index - other < 144 for other in retunes) <= PLAIN.retunes_per_day


def test_another_environment_asks_once_for_a_retune() -> None:
    state = plain_state(environment="sha256:old")
    same = {"gemm": 0.6, "rms": 0.4}
    reports, _ = follow(state, [at(i, same, environment="sha256:new") for i in (9, 10, 11)], PLAIN)
    assert [r.action for r in reports] == [DriftAction.RETUNE, DriftAction.NONE, DriftAction.NONE]
    assert reports[0].reasons[0].code is DriftCode.ENVIRONMENT_CHANGED


def test_an_unknown_environment_is_not_another_one() -> None:
    state = plain_state(environment="sha256:old")
    report, _ = detect(at(9, {"gemm": 0.6, "rms": 0.4}), state=state, settings=PLAIN)
    assert not report.detected


# --- latency, thin windows, roll-ups, bounds ----------------------------------------------------


def test_slower_kernels_at_an_unchanged_mix_raise_an_alarm_never_a_retune() -> None:
    rng = np.random.default_rng(9)
    settings = DEMO_SETTINGS.model_copy(update={"latency_scale_min": 0.02})
    state = learn([window(i, CHAT, rng) for i in range(6)], settings=settings)
    reports, state = follow(
        state, [window(i, CHAT, rng, slow=1.25) for i in range(10, 14)], settings
    )
    actions = {report.action for report in reports}
    assert DriftAction.ALARM in actions
    assert actions <= {DriftAction.ALARM, DriftAction.NONE}
    alarm = next(report for report in reports if report.action is DriftAction.ALARM)
    assert alarm.reasons[0].code is DriftCode.LATENCY_SHIFTED
    assert "check clocks" in alarm.sentence


def test_ordinary_noise_of_latency_raises_no_alarm() -> None:
    rng = np.random.default_rng(10)
    reports, _ = follow(chat_state(rng), [window(i, CHAT, rng) for i in range(10, 110)])
    assert not any(report.action is DriftAction.ALARM for report in reports)


def test_a_sampled_window_is_not_judged_by_a_counted_baseline_until_counters_stay_away() -> None:
    rng = np.random.default_rng(11)
    counted = [window(i, CHAT, rng).model_copy(update={"counted": True}) for i in range(10)]
    state = learn([window(99, CODE, rng), *counted], settings=PLAIN)
    assert state.counted
    reports, after = follow(state, [window(i, CODE, rng) for i in range(10, 13)])
    assert [report.skipped for report in reports] == ["not-counted"] * 3
    assert (after.cusums, after.pending) == (state.cusums, state.pending)
    (judged,), _ = follow(after, [window(13, CODE, rng)])
    assert judged.skipped == ""
    (back,), back_again = follow(after, [counted[0].model_copy(update={"window_start_ns": 13})])
    assert (back.skipped, back_again.uncounted) == ("", 0)


@pytest.mark.parametrize("shares", [{}, {"gemm": 1.0}])
def test_a_window_that_says_too_little_changes_nothing_and_says_so(
    shares: dict[str, float],
) -> None:
    state = plain_state()
    thin = at(9, shares, launches=20)
    report, after = detect(thin, state=state, settings=PLAIN)
    assert not report.detected
    assert report.skipped in ("no-gpu-time", "too-few-launches")
    assert ("few" if shares else "no kernel time") in report.sentence
    assert (after.cusums, after.new_recent) == (state.cusums, state.new_recent)


def test_windows_are_judged_in_roll_ups_but_new_signatures_at_once() -> None:
    settings = DriftSettings(size_classes=(100,), uncovered_windows=1)
    state = learn([at(i, {"gemm": 0.6, "rms": 0.4}) for i in range(24)], settings=settings)
    moved = {"gemm": 0.9, "rms": 0.1}
    cusums = []
    for index in range(30, 36):
        report, state = detect(at(index, moved), state=state, settings=settings)
        cusums.append(report.cusum)
    assert cusums[:5] == [0.0] * 5
    assert cusums[5] > 0
    new = {"gemm": 0.6, "rms": 0.39, "moe": 0.01}
    reports, _ = follow(state, [at(36, new), at(37, new)], settings)
    assert reports[1].detected


def test_thin_windows_gather_until_they_make_a_roll_up_but_not_for_ever() -> None:
    settings = DriftSettings(rollup_windows=2, size_classes=(1_000,), new_launches=10)
    state = learn([at(i, {"gemm": 0.6, "rms": 0.4}) for i in range(8)], settings=settings)
    _, gathered = follow(
        state, [at(i, {"gemm": 0.9, "rms": 0.1}, launches=400) for i in (9, 10, 11)], settings
    )
    assert gathered.pending == ()
    assert min(gathered.cusums) > 0  # longer than a roll-up: it counts for each of its phases
    _, starved = follow(
        state, [at(i, {"gemm": 0.9, "rms": 0.1}, launches=20) for i in range(9, 40)], settings
    )
    assert len(starved.pending) == 8
    assert starved.cusums == ()


def test_library_keys_and_history_stay_bounded_under_endless_change() -> None:
    settings = PLAIN.model_copy(update={"library_max": 8, "keys_max": 40, "cooldown_s": 0.0})
    state = plain_state()
    for index in range(9, 120):
        shares = {"gemm": 0.5, f"k{index // 2}": 0.5}
        _, state = detect(
            at(index, shares, environment=f"e{index}"), state=state, settings=settings
        )
    assert len(state.library.profiles) <= 8
    assert len(state.library.keys) <= 40
    assert len(state.flagged) <= 8
    assert len(state.retunes_ns) <= 8
    assert len(state.pending) <= 4


def test_a_full_memory_forgets_keys_of_forgotten_mixes_and_still_learns_new_ones() -> None:
    settings = PLAIN.model_copy(update={"library_max": 8, "keys_max": 24})
    state = plain_state()
    for index in range(9, 60):
        state = adopt(
            state, at(index, {"gemm": 0.5, f"k{index}": 0.5}), tuned=False, settings=settings
        )
    report, _ = detect(at(61, {"gemm": 0.5, "k59": 0.5}), state=state, settings=settings)
    assert (report.new_share, report.distance) == (0.0, 0.0)
    assert len(state.library.keys) <= 24
    for profile in state.library.profiles:
        assert max(profile.indexes) < len(state.library.keys)


def test_adopting_the_same_window_twice_adds_it_once() -> None:
    state = plain_state()
    profile = at(9, MOVED)
    once = adopt(state, profile, tuned=False, settings=PLAIN)
    assert adopt(once, profile, tuned=False, settings=PLAIN) == once
    assert len(once.library.profiles) == len(state.library.profiles) + 1


def test_a_mode_known_by_duration_is_recognised_without_its_short_sibling() -> None:
    def by_time(start: int, *modes: tuple[int, int]) -> WorkloadProfile:
        stats = tuple(
            SignatureStat(
                signature=Signature(kernel="gemm", blocks=(64, 1, 1), mode=number),
                launches=500,
                gpu_time_ns=500 * ns,
                median_ns=ns,
            )
            for number, (ns, _) in enumerate(modes)
        )
        return WorkloadProfile(window_start_ns=start * S, window_ns=S, observed_ns=S, stats=stats)

    state = learn([by_time(i, (42_000, 0), (100_000, 0)) for i in range(4)], settings=PLAIN)
    report, _ = detect(by_time(9, (99_000, 0)), state=state, settings=PLAIN)
    assert report.new_share == 0.0
    report, _ = detect(by_time(9, (240_000, 0)), state=state, settings=PLAIN)
    assert report.new_share == 1.0


# --- two profiles -------------------------------------------------------------------------------


def test_a_profile_does_not_drift_from_itself() -> None:
    one = profile_of({"gemm": 0.6, "rms": 0.4})
    report = compare(one, one)
    assert (report.detected, report.action, report.distance) == (False, DriftAction.NONE, 0.0)
    assert report.sentence == "The workload is a known one."


@given(st.integers(0, 2**32))
def test_two_samples_of_one_mix_are_not_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mix = rng.dirichlet(np.ones(12))
    one, two = (
        profile_of(
            {f"k{i}": n / 3000 for i, n in enumerate(rng.multinomial(3000, mix))}, launches=3000
        )
        for _ in range(2)
    )
    # a signature of a dozen launches in 3,000 may miss a sample: that is news by definition
    report = compare(one, two)
    assert not report.detected or report.new_share > 0.005


def test_comparing_names_what_appeared_what_vanished_and_what_moved() -> None:
    report = compare(
        profile_of({"gemm": 0.5, "rms": 0.3, "old": 0.2}),
        profile_of({"gemm": 0.8, "rms": 0.1, "new": 0.1}),
    )
    by_kernel = {reason.kernel: reason for reason in report.reasons}
    assert report.detected
    assert by_kernel["new"].code is DriftCode.NEW_SIGNATURE
    assert by_kernel["old"].share_after == 0.0
    assert by_kernel["gemm"].share_after == pytest.approx(0.8)
    assert report.reasons[0].kernel == "gemm"


def test_the_same_mix_at_thrice_the_rate_is_a_changed_frequency() -> None:
    report = compare(profile_of({"gemm": 1.0}, seconds=600), profile_of({"gemm": 1.0}, seconds=200))
    assert [reason.code for reason in report.reasons] == [DriftCode.FREQUENCY_CHANGED]
    assert report.action is DriftAction.ADOPT


def test_a_comparison_with_nothing_is_no_drift_and_says_so() -> None:
    report = compare(profile_of({}), profile_of({"gemm": 1.0}))
    assert (report.detected, report.skipped) == (False, "no-gpu-time")


def test_a_hostile_kernel_name_does_not_swell_the_sentence() -> None:
    report = compare(profile_of({"gemm": 1.0}), profile_of({"x" * 100_000: 1.0}))
    assert report.detected
    assert len(report.sentence) < 1_000


# --- settings and statistics --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slack": 9.0}, "slack"),
        ({"size_classes": (10, 10)}, "(10, 10)"),
        ({"size_classes": (0,)}, "(0,)"),
        ({"threshold_min": 50.0}, "threshold_min"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, object], named: str) -> None:
    with raises_invalid(names=(named,)):
        DriftSettings.model_validate(wrong)


def test_an_unknown_setting_is_refused() -> None:
    with raises_invalid("unknown", kind="extra_forbidden"):
        DriftSettings.model_validate({"unknown": 1})


def test_every_setting_says_what_it_is() -> None:
    undocumented = [n for n, f in DriftSettings.model_fields.items() if not f.description]
    assert undocumented == []


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_the_divergence_is_symmetric_bounded_and_zero_only_for_equals(seed: int, keys: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(keys), size=2)
    there, back = jensen_shannon(p, q[None])[0], jensen_shannon(q, p[None])[0]
    assert there == pytest.approx(back, abs=1e-12)
    assert 0 <= there <= 1
    assert jensen_shannon(p, p[None])[0] == pytest.approx(0, abs=1e-12)


def test_medoids_cover_every_cluster() -> None:
    points = np.concatenate([np.linspace(c, c + 0.1, 20) for c in (0.0, 5.0, 9.0)])
    chosen = medoids(np.abs(points[:, None] - points[None, :]), 3)
    assert sorted(int(points[i] // 4) for i in chosen) == [0, 1, 2]


def test_the_calibrated_threshold_holds_its_run_length_on_fresh_noise() -> None:
    rng = np.random.default_rng(11)
    grid = np.arange(0.5, 20.0, 0.25)
    scores = [rng.standard_normal(24) for _ in range(40)]
    threshold = cusum_threshold(
        scores, slack=0.5, run_length=200, grid=grid, generator=np.random.default_rng(12)
    )
    total, alarms = 0.0, 0
    for score in rng.standard_normal(200_000):
        total = max(0.0, total + score - 0.5)
        if total > threshold:
            alarms, total = alarms + 1, 0.0
    assert 100 <= 200_000 / alarms <= 450
