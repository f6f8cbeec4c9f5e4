"""Clocks: the machine's and the one tests move mean the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.expect import raises_naming

from retuned.clock import FakeClock, SystemClock
from retuned.ports import Clock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])
def test_wall_time_has_a_zone_and_seconds_never_go_back(clock: Clock) -> None:
    assert clock.now().utcoffset() == timedelta(0)
    first = clock.monotonic_s()
    assert clock.monotonic_s() >= first


def test_the_fake_stands_still_until_it_is_moved() -> None:
    clock = FakeClock()
    before, first = clock.now(), clock.monotonic_s()
    assert clock.now() == before
    clock.advance(90.5)
    assert clock.now() - before == timedelta(seconds=90.5)
    assert clock.monotonic_s() - first == pytest.approx(90.5)


def test_a_wall_clock_put_back_does_not_move_the_seconds() -> None:
    clock = FakeClock()
    first = clock.monotonic_s()
    clock.set_wall(datetime(2020, 1, 1, tzinfo=UTC))
    assert clock.now().year == 2020
    assert clock.monotonic_s() == first
    with raises_naming(ValueError, "set_wall"):
        clock.advance(-1.0)


def test_a_clock_without_a_zone_is_refused() -> None:
    with raises_naming(ValueError, "zone"):
        FakeClock(datetime(2026, 1, 1))
