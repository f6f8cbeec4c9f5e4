"""How long the runtime's CUSUMs run, computed and played; what so many clean checks prove."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.runtime.shadow.cusum import DECAY, PACE, Cusum, CusumRule
from retuned.stages.watch.run_length import (
    chance_found,
    checks_needed,
    failure_rate_bound,
    run_length,
    run_length_of_signs,
    seconds_to_find,
    sentence,
)


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (0.1, 1.0), (0.1, 1.1), (0.0, 1.2)])
def test_a_million_checks_and_more_pass_between_false_alarms_of_decay(
    shift: float, spread: float
) -> None:
    """Also where the warm-up has learned mean and spread a little wrong."""
    assert run_length(DECAY, shift=shift, spread=spread) >= 1e6


@pytest.mark.parametrize("scatter", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_a_doubling_is_found_within_two_hundred_checks(scatter: float) -> None:
    """Whatever the ratios of single checks scatter by, up to a factor of e."""
    risen = math.log(2.0) / scatter
    assert run_length(DECAY, shift=risen) <= 200.0
    assert run_length(DECAY, shift=risen - 0.1) <= 200.0


def test_a_variant_as_fast_as_the_incumbent_is_not_called_slower_in_a_million_checks() -> None:
    assert run_length_of_signs(PACE, share=0.5) >= 1e6
    assert run_length_of_signs(PACE, share=0.9) <= 100.0
    assert run_length_of_signs(PACE, share=1.0) == pytest.approx(37.0, abs=1.0)


def test_the_computed_length_is_that_of_the_runtimes_own_sum() -> None:
    """Played with short lengths, which are long enough to compare."""
    rule = CusumRule(slack=0.35, threshold=4.0, clip=4.0, warmup=0, least_spread=1.0)
    source, lengths = random.Random(1), []
    for _ in range(400):
        course, count = Cusum(rule), 1
        while not course.add(source.gauss(0.0, 1.0)):
            count += 1
        lengths.append(count)
    computed = run_length(rule)
    error = statistics.stdev(lengths) / math.sqrt(len(lengths))
    assert statistics.mean(lengths) == pytest.approx(computed, abs=4 * error)


def test_a_doubling_is_found_in_the_runtimes_own_sum_after_its_warm_up() -> None:
    source = random.Random(2)
    for scatter in (0.3, 1.0):
        delays = []
        for _ in range(50):
            course, delay = Cusum(DECAY), 1
            for _ in range(DECAY.warmup + 200):
                assert not course.add(source.gauss(-1.0, scatter))
            while not course.add(source.gauss(-1.0 + math.log(2.0), scatter)):
                delay += 1
            delays.append(delay)
        assert statistics.mean(delays) <= 200


def test_lengths_of_nonsense_are_refused() -> None:
    with raises_naming(ValueError, "spread", "0.0"):
        run_length(DECAY, spread=0.0)
    with raises_naming(ValueError, "share", "1.1"):
        run_length_of_signs(PACE, share=1.1)


@given(st.floats(1e-7, 0.5))
def test_as_many_checks_as_are_needed_bound_the_rate_and_one_less_does_not(rate: float) -> None:
    needed = checks_needed(rate)
    assert failure_rate_bound(needed) <= rate * (1 + 1e-9)
    assert needed == 1 or failure_rate_bound(needed - 1) > rate * (1 - 1e-9)
    assert chance_found(rate, checks=needed) >= 0.95 - 1e-9


def test_one_launch_in_a_hundred_is_found_within_a_minute_at_one_check_in_fifty() -> None:
    assert seconds_to_find(0.01, every=50, launches_per_s=250.0) < 60.0
    assert seconds_to_find(1e-4, every=50, launches_per_s=3_000.0) < 600.0
    assert seconds_to_find(1e-4, every=1_000, launches_per_s=3_000.0) == pytest.approx(
        2.77 * 3_600, rel=0.01
    )


def test_no_checks_prove_nothing() -> None:
    assert failure_rate_bound(0) == 1.0
    assert "unknown" in sentence(0)
    with raises_naming(ValueError, "checks", "-1"):
        failure_rate_bound(-1)
    for rate in (0.0, 1.0, -0.1):
        with raises_naming(ValueError, "failure rate", str(rate)):
            checks_needed(rate)
    with raises_naming(ValueError, "rate", "0 of 1.0"):
        seconds_to_find(0.01, every=0, launches_per_s=1.0)
