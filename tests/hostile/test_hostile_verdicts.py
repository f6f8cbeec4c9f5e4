"""What a verdict makes of times that cannot be, and of one shape that pays for all."""

from __future__ import annotations

import pytest

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
    Verdict,
    judge,
)

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
PASSED = tuple(Check(gate=f"G{number}") for number in range(7))


def around(ratio: float, *, confidence: float = 0.99) -> Interval:
    return Interval(lower=ratio * 0.995, point=ratio, upper=ratio * 1.005, confidence=confidence)


def shape(rows: int, *, incumbent_us: float, candidate_us: float, floor_us: float) -> ShapeResult:
    return ShapeResult(
        axes={"M": rows},
        weight=1.0,
        incumbent_us=incumbent_us,
        candidate_us=candidate_us,
        speedup=around(incumbent_us / candidate_us, confidence=0.95),
        floor_us=floor_us,
    )


def judged(*shapes: ShapeResult) -> Verdict:
    before = sum(each.incumbent_us for each in shapes)
    after = sum(each.candidate_us for each in shapes)
    groups = [
        GroupTiming(
            members=tuple(range(len(shapes))), speedup=around(before / after), p_value=1e-6
        ),
    ]
    groups += [
        GroupTiming(
            members=(index,), speedup=around(each.incumbent_us / each.candidate_us), p_value=1e-6
        )
        for index, each in enumerate(shapes)
        if len(shapes) > 1
    ]
    evidence = Evidence(
        candidate=A,
        incumbent=B,
        checks=PASSED,
        search=around(before / after, confidence=0.95),
        finalist=True,
        timing=Timing(
            shapes=shapes,
            groups=tuple(groups),
            noise_floor_ratio=1.001,
            blocks=12,
            pairs=48,
            processes=2,
        ),
    )
    return judge(evidence, JudgeSettings())


def test_times_that_can_be_are_promoted() -> None:
    found = judged(shape(4, incumbent_us=100.0, candidate_us=80.0, floor_us=50.0))
    assert (found.status, found.reason) == (Status.PROMOTE, Reason.FASTER)


@pytest.mark.parametrize("candidate_us", [40.0, 10.0, 0.001])
def test_a_time_below_the_floor_is_impossibly_fast(candidate_us: float) -> None:
    """H23, H25: bytes and arithmetic take the time they take, wherever they were kept."""
    found = judged(
        shape(4, incumbent_us=100.0, candidate_us=candidate_us, floor_us=50.0),
        shape(48, incumbent_us=900.0, candidate_us=890.0, floor_us=500.0),
    )
    assert (found.status, found.reason) == (Status.REJECT, Reason.IMPOSSIBLY_FAST)


def test_one_shape_near_nothing_does_not_pay_for_the_others() -> None:
    """H23: the geometric mean of these is 30 times faster; where most time goes it is slower."""
    found = judged(
        shape(1, incumbent_us=1.0, candidate_us=0.001, floor_us=0.0),
        shape(48, incumbent_us=900.0, candidate_us=930.0, floor_us=0.0),
    )
    assert not (found.status is Status.PROMOTE and found.guard.allows({"M": 48})), found
