"""The judge: promotes on complete evidence only, and narrows what it promotes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.profile import ProfileSettings
from retuned.stages.verdict import (
    Check,
    Evidence,
    GroupTiming,
    Interval,
    JudgeSettings,
    Reason,
    ShapeResult,
    Status,
    Timing,
    groups_of,
    guard_for,
    judge,
    rank,
)

CANDIDATE, INCUMBENT = "sha256:" + "c" * 64, "sha256:" + "d" * 64
PASSED = tuple(Check(gate=gate) for gate in ("G0", "G1", "G2", "G3", "G4", "G5", "G6"))


def interval(lower: float, point: float, upper: float, confidence: float = 0.99) -> Interval:
    return Interval(lower=lower, point=point, upper=upper, confidence=confidence)


def shape(rows: int, speedup: Interval, *, weight: float = 1.0, **more: Any) -> ShapeResult:
    return ShapeResult(
        axes={"M": rows},
        weight=weight,
        incumbent_us=100.0,
        candidate_us=100.0 / speedup.point,
        speedup=speedup,
        **more,
    )


def timing(*shapes: ShapeResult, groups: dict[tuple[int, ...], Interval], **more: Any) -> Timing:
    return Timing(
        shapes=shapes,
        groups=tuple(
            GroupTiming(members=members, speedup=speedup, p_value=0.001)
            for members, speedup in groups.items()
        ),
        **{"noise_floor_ratio": 1.005, "blocks": 12, "pairs": 48, "processes": 2, **more},
    )


def evidence(measured: Timing | None, **more: Any) -> Evidence:
    body = {"checks": PASSED, "finalist": True, **more}
    return Evidence(candidate=CANDIDATE, incumbent=INCUMBENT, timing=measured, **body)


WIN = interval(1.2, 1.25, 1.3)
GOOD = timing(shape(64, WIN), groups={(0,): WIN})


def test_a_win_with_complete_evidence_is_promoted_with_its_numbers() -> None:
    verdict = judge(evidence(GOOD))
    assert (verdict.status, verdict.reason) == (Status.PROMOTE, Reason.FASTER)
    assert verdict.speedup == WIN
    assert verdict.noise_floor_ratio == 1.005
    assert verdict.guard.bounds == {"M": (57, 64)}


@pytest.mark.parametrize("gate", ["G0", "G1", "G2", "G3", "G4", "G6"])
def test_a_gate_without_evidence_never_promotes(gate: str) -> None:
    checks = tuple(check for check in PASSED if check.gate != gate)
    verdict = judge(evidence(GOOD, checks=checks))
    assert (verdict.status, verdict.reason) == (Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES)


@pytest.mark.parametrize("few", [{"blocks": 9}, {"pairs": 29}, {"processes": 1}])
def test_too_few_samples_are_no_evidence(few: dict[str, int]) -> None:
    verdict = judge(evidence(timing(shape(64, WIN), groups={(0,): WIN}, **few)))
    assert (verdict.status, verdict.reason) == (Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES)


def test_a_finalist_that_was_not_measured_again_is_not_promoted() -> None:
    verdict = judge(evidence(None, search=WIN))
    assert (verdict.status, verdict.reason) == (Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES)


@given(st.sampled_from(sorted(set(Reason) - {Reason.HARNESS_FAILED})), st.integers(0, 6))
def test_any_failed_check_rejects_with_its_own_reason(reason: Reason, place: int) -> None:
    checks = list(PASSED)
    checks[place] = checks[place].model_copy(update={"reason": reason})
    verdict = judge(evidence(GOOD, checks=tuple(checks)))
    assert (verdict.status, verdict.reason) == (Status.REJECT, reason)
    assert verdict.gate == PASSED[place].gate


def test_a_failure_of_the_lab_says_nothing_about_the_candidate() -> None:
    checks = (*PASSED[:4], Check(gate="G4", reason=Reason.HARNESS_FAILED))
    assert judge(evidence(GOOD, checks=checks)).status is Status.AMBIGUOUS


def test_a_win_smaller_than_what_identical_clones_showed_is_within_noise() -> None:
    noisy = timing(shape(64, WIN), groups={(0,): WIN}, noise_floor_ratio=1.22)
    verdict = judge(evidence(noisy))
    assert (verdict.status, verdict.reason) == (Status.AMBIGUOUS, Reason.WITHIN_NOISE)


def test_a_win_below_the_required_gain_is_not_enough() -> None:
    small = interval(1.0055, 1.008, 1.02)
    measured = timing(shape(64, small), groups={(0,): small}, noise_floor_ratio=1.001)
    verdict = judge(evidence(measured))
    assert (verdict.status, verdict.reason) == (Status.REJECT, Reason.NOT_FASTER_ENOUGH)


def test_an_adjusted_p_value_above_alpha_does_not_promote() -> None:
    group = GroupTiming(members=(0,), speedup=WIN, p_value=0.02)
    assert (
        judge(evidence(GOOD.model_copy(update={"groups": (group,)}))).status is not Status.PROMOTE
    )


def test_an_interval_of_too_little_confidence_does_not_promote() -> None:
    loose = interval(1.2, 1.25, 1.3, confidence=0.9)
    measured = timing(shape(64, WIN), groups={(0,): loose})
    assert judge(evidence(measured)).status is not Status.PROMOTE


def test_a_time_below_physics_is_impossible() -> None:
    measured = timing(shape(64, WIN, floor_us=95.0), groups={(0,): WIN})
    verdict = judge(evidence(measured))
    assert (verdict.status, verdict.reason) == (Status.REJECT, Reason.IMPOSSIBLY_FAST)


def test_a_floor_that_the_incumbent_is_below_convicts_nobody() -> None:
    """Such a floor is wrong about this kernel, whoever runs it."""
    measured = timing(shape(64, WIN, floor_us=1e6), groups={(0,): WIN})
    assert judge(evidence(measured)).status is Status.PROMOTE


def test_the_guard_leaves_out_the_shape_that_gets_slower() -> None:
    slow, fast = interval(0.7, 0.8, 0.9, 0.95), interval(1.9, 2.0, 2.1, 0.95)
    measured = timing(
        shape(1, slow),
        shape(64, fast),
        shape(256, fast),
        groups={
            (0, 1, 2): interval(1.5, 1.6, 1.7),
            (1, 2): interval(1.9, 2.0, 2.1),
            (2,): interval(1.8, 2.0, 2.2),
        },
    )
    verdict = judge(evidence(measured))
    assert verdict.status is Status.PROMOTE
    assert verdict.guard.bounds == {"M": (57, 256)}
    inside = [shape.axes["M"] for shape in verdict.shapes if verdict.guard.allows(shape.axes)]
    assert inside == [64, 256]


def test_the_guard_reaches_down_to_all_lengths_that_the_profile_rounded_up() -> None:
    coarse = ProfileSettings(ladder=(1, 2, 4, 64, 256))
    measured = timing(shape(256, interval(1.9, 2.0, 2.1)), groups={(0,): interval(1.9, 2.0, 2.1)})
    verdict = judge(evidence(measured), JudgeSettings(buckets=coarse))
    assert verdict.guard.bounds == {"M": (65, 256)}


def test_a_rare_shape_may_lose_a_little_and_a_common_one_may_not() -> None:
    little = interval(0.97, 0.98, 0.99, 0.95)
    for weight, promoted in ((0.001, True), (1.0, False)):
        measured = timing(shape(1, little, weight=weight), shape(64, WIN), groups={(0, 1): WIN})
        assert (judge(evidence(measured)).status is Status.PROMOTE) is promoted


def test_candidates_that_lost_the_search_say_how() -> None:
    reasons = [
        (interval(0.5, 0.6, 0.7), Reason.SLOWER),
        (interval(0.9, 1.0, 1.1), Reason.NOT_FASTER_ENOUGH),
        (interval(1.1, 1.2, 1.3), Reason.LOST_SEARCH),
    ]
    for speedup, reason in reasons:
        verdict = judge(evidence(None, finalist=False, search=speedup))
        assert (verdict.status, verdict.reason) == (Status.REJECT, reason)


@given(st.lists(st.tuples(st.floats(0.2, 5.0), st.floats(0.0, 0.5)), max_size=8), st.integers(1, 3))
def test_finalists_are_few_may_win_and_come_best_first(
    results: list[tuple[float, float]], count: int
) -> None:
    named = [
        (f"sha256:{index:064x}", interval(point / (1 + reach), point, point * (1 + reach)))
        for index, (point, reach) in enumerate(results)
    ]
    chosen = rank(named, count=count)
    by_digest = dict(named)
    points = [by_digest[digest].point for digest in chosen]
    assert len(chosen) <= count
    assert points == sorted(points, reverse=True)
    assert all(by_digest[digest].upper > 1.0 for digest in chosen)


@given(
    st.lists(
        st.fixed_dictionaries({"M": st.integers(1, 600), "S": st.integers(1, 600)}),
        min_size=1,
        max_size=5,
        unique_by=lambda axes: tuple(axes.values()),
    )
)
def test_a_group_s_guard_never_covers_a_shape_outside_the_group(axes: list[dict[str, int]]) -> None:
    groups = groups_of(axes)
    assert groups[0] == tuple(range(len(axes)))
    for members in groups:
        low = {name: min(axes[i][name] for i in members) for name in ("M", "S")}
        high = {name: max(axes[i][name] for i in members) for name in ("M", "S")}
        for index, shape_axes in enumerate(axes):
            inside = all(low[n] <= shape_axes[n] <= high[n] for n in ("M", "S"))
            assert inside == (index in members)


def test_a_guard_covers_the_lengths_that_a_bucket_stands_for_and_not_one_more() -> None:
    guard = guard_for([{"M": 384}])
    assert guard.allows({"M": 257})
    assert not guard.allows({"M": 256})
    assert not guard.allows({"M": 385})
    assert guard_for([{"M": 100}]).bounds == {"M": (100, 100)}  # no bucket's edge: taken exactly


def test_no_settings_let_a_slowdown_through() -> None:
    loss = interval(0.90, 0.95, 0.99)
    measured = timing(shape(64, loss), groups={(0,): loss}, noise_floor_ratio=0.5)
    lax = JudgeSettings(min_gain_ratio=0.0, alpha=0.4, common_slowdown=9.0, rare_slowdown=9.0)
    assert judge(evidence(measured), lax).status is not Status.PROMOTE
