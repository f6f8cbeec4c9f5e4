"""Kernels in place: medians of both arms at the same lengths, and the change per step."""

from __future__ import annotations

import pytest

from retuned.stages.watch.proof import Arm, ArmLaunches, KernelTime, kernel_times
from retuned.stages.watch.proof.kernels import LEAST_SAMPLES, change_per_step_s
from retuned.stages.watch.proof.records import MOST_LENGTHS


def seen(
    arm: Arm, length: int, *times_us: float, launches: int | None = None, count: int = LEAST_SAMPLES
) -> ArmLaunches:
    times = tuple(1e-6 * each for each in times_us)
    if len(times) == 1:
        times *= count
    return ArmLaunches(
        arm=arm,
        lengths=(length,),
        launches=len(times) if launches is None else launches,
        times_s=times,
    )


def test_both_arms_are_compared_at_the_same_length() -> None:
    found = kernel_times(
        [
            seen(Arm.OFF, 512, 1200.0, launches=600),
            seen(Arm.ON, 512, 300.0, launches=400),
            seen(Arm.OFF, 8, 10.0, launches=50),
            seen(Arm.ON, 8, 12.0, launches=50),
        ],
        steps=100,
    )
    assert [(k.lengths, k.launches) for k in found] == [((512,), 10.0), ((8,), 1.0)]
    assert [k.speedup for k in found] == [pytest.approx(4.0), pytest.approx(10.0 / 12.0)]
    assert change_per_step_s(found) == pytest.approx(10.0 * -900e-6 + 1.0 * 2e-6)


def test_a_burst_does_not_move_the_median() -> None:
    quiet = [100.0] * 9
    (found,) = kernel_times(
        [seen(Arm.OFF, 8, *quiet, 9000.0), seen(Arm.ON, 8, *quiet, 9000.0)], steps=10
    )
    assert found.speedup == pytest.approx(1.0)


def test_a_length_of_one_arm_has_no_speedup() -> None:
    few = seen(Arm.ON, 8, 5.0, count=LEAST_SAMPLES - 1)
    (found,) = kernel_times([seen(Arm.OFF, 8, 10.0), few], steps=4)
    assert (found.on_s, found.speedup) == (None, None)
    assert found.off_s == pytest.approx(10e-6)


def test_no_change_is_told_where_few_launches_are_compared() -> None:
    kernels = [
        KernelTime(lengths=(1,), launches=3.0, off_s=1e-5, on_s=2e-5),
        KernelTime(lengths=(2,), launches=1.0, off_s=1e-5),
    ]
    assert change_per_step_s(kernels) is None
    assert change_per_step_s(kernels[:1]) == pytest.approx(3e-5)
    assert change_per_step_s([]) is None


def test_without_steps_or_launches_nothing_was_measured() -> None:
    assert kernel_times([seen(Arm.ON, 8, 1.0)], steps=0) == ()
    assert kernel_times([], steps=9) == ()


def test_a_report_is_bounded_to_the_lengths_with_the_most_time() -> None:
    many = [seen(arm, n, float(n)) for n in range(1, 60) for arm in (Arm.ON, Arm.OFF)]
    found = kernel_times(many, steps=8)
    assert [k.lengths for k in found] == [(n,) for n in range(59, 59 - MOST_LENGTHS, -1)]
