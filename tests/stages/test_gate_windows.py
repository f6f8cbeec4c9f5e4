"""Change windows: Argo CD's meaning, time zones, the two nights when clocks change."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.expect import raises_invalid

from retuned.stages.gate import Window, judge_windows, may_finish

BERLIN = ZoneInfo("Europe/Berlin")


def window(kind: str = "allow", schedule: str = "0 9 * * MON-FRI", **changes: Any) -> Window:
    return Window.model_validate({"kind": kind, "schedule": schedule, "duration": "8h"} | changes)


def berlin(text: str, *, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


MONDAY = utc("2026-11-16T12:00")
SATURDAY = utc("2026-11-21T12:00")


def test_no_window_allows_always() -> None:
    state = judge_windows([], now=SATURDAY)
    assert (state.allowed, state.next_change_at) == (True, None)


def test_an_allow_window_allows_only_inside() -> None:
    inside = judge_windows([window()], now=MONDAY)
    assert (inside.allowed, inside.next_change_at) == (True, utc("2026-11-16T17:00"))
    outside = judge_windows([window()], now=SATURDAY)
    assert (outside.allowed, outside.denied) == (False, False)
    assert outside.next_change_at == utc("2026-11-23T09:00")


def test_two_allow_windows_are_either_or() -> None:
    night = window(schedule="0 22 * * *", duration="1h")
    assert judge_windows([window(), night], now=MONDAY).allowed
    assert judge_windows([window(), night], now=MONDAY.replace(hour=22)).allowed
    assert not judge_windows([window(), night], now=MONDAY.replace(hour=21)).allowed


def test_a_deny_beats_every_allow_and_is_asked_again_when_it_ends() -> None:
    deny = window("deny", "0 10 * * MON", duration="1h", description="stand-up")
    state = judge_windows([window(), deny], now=MONDAY.replace(hour=10, minute=30))
    assert (state.allowed, state.denied) == (False, True)
    assert "stand-up" in state.why
    assert state.next_change_at == MONDAY.replace(hour=11, minute=0)


def test_a_deny_alone_allows_all_other_times() -> None:
    deny = window("deny", "0 0 20 12 *", duration="360h")
    before = judge_windows([deny], now=MONDAY)
    assert (before.allowed, before.next_change_at) == (True, utc("2026-12-20T00:00"))
    inside = judge_windows([deny], now=utc("2026-12-31T23:59"))
    assert (inside.allowed, inside.next_change_at) == (False, utc("2027-01-04T00:00"))


def test_a_window_is_open_from_its_first_moment_and_closed_at_its_last() -> None:
    opens, closes = utc("2026-11-16T09:00"), utc("2026-11-16T17:00")
    assert not judge_windows([window()], now=opens - timedelta(microseconds=1)).allowed
    assert judge_windows([window()], now=opens).allowed
    assert judge_windows([window()], now=closes - timedelta(microseconds=1)).allowed
    assert not judge_windows([window()], now=closes).allowed


def test_windows_that_touch_are_one() -> None:
    halves = [window(duration="4h"), window(schedule="0 13 * * MON-FRI", duration="4h")]
    state = judge_windows(halves, now=MONDAY)
    assert state.next_change_at == utc("2026-11-16T17:00")


def test_a_start_that_repeats_faster_than_it_lasts_never_closes() -> None:
    state = judge_windows([window(schedule="* * * * *", duration="2h")], now=MONDAY)
    assert (state.allowed, state.next_change_at) == (True, None)


def test_friday_is_friday() -> None:
    friday = window("deny", "0 9 * * FRI", duration="8h")
    assert [
        judge_windows([friday], now=utc(f"2026-11-{day}T12:00")).allowed for day in range(16, 23)
    ] == [True, True, True, True, False, True, True]


# The night of 2026-03-29: 02:00 becomes 03:00. The night of 2026-10-25: 03:00 becomes 02:00.


def test_office_hours_follow_local_time_across_both_changes() -> None:
    office = window(timeZone="Europe/Berlin")
    for day, opens in (("03-27", 8), ("03-30", 7), ("10-23", 7), ("10-26", 8)):
        first = utc(f"2026-{day}T{opens:02}:00")
        assert judge_windows([office], now=first).allowed
        assert not judge_windows([office], now=first - timedelta(minutes=1)).allowed
        assert judge_windows([office], now=first).next_change_at == first + timedelta(hours=8)


def test_a_start_that_does_not_exist_in_spring_comes_right_after() -> None:
    night = window(schedule="30 2 * * *", duration="1h", timeZone="Europe/Berlin")
    assert not judge_windows([night], now=berlin("2026-03-29T01:59")).allowed
    assert judge_windows([night], now=berlin("2026-03-29T03:00")).allowed
    assert judge_windows([night], now=berlin("2026-03-29T03:59")).allowed
    assert not judge_windows([night], now=berlin("2026-03-29T04:00")).allowed


def test_a_start_that_comes_twice_in_autumn_opens_once() -> None:
    night = window(schedule="30 2 * * *", duration="30m", timeZone="Europe/Berlin")
    assert judge_windows([night], now=berlin("2026-10-25T02:45", fold=0)).allowed
    assert not judge_windows([night], now=berlin("2026-10-25T02:45", fold=1)).allowed
    before = judge_windows([night], now=berlin("2026-10-25T02:00", fold=0))
    assert before.next_change_at == utc("2026-10-25T00:30")


def test_eight_hours_are_eight_hours_on_the_night_of_the_change() -> None:
    night = window(schedule="0 22 * * *", timeZone="Europe/Berlin")
    spring = judge_windows([night], now=berlin("2026-03-28T23:00"))
    assert spring.next_change_at == berlin("2026-03-29T07:00").astimezone(UTC)
    autumn = judge_windows([night], now=berlin("2026-10-24T23:00"))
    assert autumn.next_change_at == berlin("2026-10-25T05:00").astimezone(UTC)


SCHEDULES = st.sampled_from(
    ["30 2 * * *", "0 3 * * *", "0 */6 * * *", "*/20 * * * *", "15 1-3 * * SAT,SUN", "0 0 1 * *"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"])
MOMENTS = st.sampled_from(
    [
        utc("2026-03-29T00:00"),
        utc("2026-10-25T00:00"),
        utc("2026-03-08T06:00"),
        utc("2026-04-05T00:00"),
    ]
)


@settings(max_examples=150, deadline=None)
@example("30 2 * * *", "Europe/Berlin", utc("2026-10-25T00:00"), 90, 50)
@given(SCHEDULES, ZONES, MOMENTS, st.integers(-600, 600), st.integers(1, 200))
def test_open_is_what_counting_forward_says(
    schedule: str, zone: str, base: datetime, minutes: int, length: int
) -> None:
    now = base + timedelta(minutes=minutes)
    one = window(schedule=schedule, duration=f"{length}m", timeZone=zone)
    cron = CronSim(schedule, (now - timedelta(days=40)).astimezone(ZoneInfo(zone)))
    last = None
    for start in cron:
        if start.astimezone(UTC) > now:
            break
        last = start.astimezone(UTC)
    expected = last is not None and now < last + timedelta(minutes=length)
    assert (one.open_until(now) is not None) == expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda kind, schedule, zone, length: window(
                kind, schedule, timeZone=zone, duration=f"{length}m"
            ),
            st.sampled_from(["allow", "deny"]), SCHEDULES, ZONES, st.integers(1, 700),
        ),
        max_size=3,
    ),
    MOMENTS,
    st.integers(-600, 600),
)  # fmt: skip
def test_the_next_change_is_the_first_change(
    windows: list[Window], base: datetime, minutes: int
) -> None:
    now = base + timedelta(minutes=minutes)
    state = judge_windows(windows, now=now)
    end = state.next_change_at or now + timedelta(days=2)
    for step in range(1, 12):  # eleven looks before it, the last of them right before
        moment = end - (end - now) / step if step < 11 else end - timedelta(seconds=1)
        if now <= moment:
            assert judge_windows(windows, now=moment).allowed == state.allowed
    if state.next_change_at is not None:
        assert state.next_change_at > now
        assert judge_windows(windows, now=state.next_change_at).allowed != state.allowed


def test_a_swap_under_way_may_finish_only_where_every_closed_window_says_so() -> None:
    started, late = MONDAY.replace(hour=16), MONDAY.replace(hour=18)
    stop, finish = window(), window(overrun="Finish")
    assert may_finish([stop], started=started, now=started)
    assert not may_finish([stop], started=started, now=late)
    assert may_finish([finish], started=started, now=late)
    deny = window("deny", "0 18 * * MON", duration="1h")
    assert not may_finish([finish, deny], started=started, now=late)
    polite = window("deny", "0 18 * * MON", duration="1h", overrun="Finish")
    assert may_finish([finish, polite], started=started, now=late)
    assert not may_finish([finish, stop], started=started, now=late)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("0 9 * * 5", "MON-FRI"),
        ("0 9 * * 1-5", "MON-FRI"),
        ("0 9 * * */2", "MON-FRI"),
        ("0 9 * * 5L", "MON-FRI"),
        ("0 9 * *", "minute hour"),
        ("0 0 9 * * MON", "minute hour"),
        ("@daily", "minute hour"),
        ("0 25 * * *", "hour"),
        ("61 * * * *", "minute"),
        ("0 0 31 2 *", "day-of-month"),
        ("0 9 * * SAT-SUN", "SAT,SUN"),
        ("0 9 * * FRI#6", "weekday"),
        ("0 9 * * FRI#1/2", "weekday"),
        ("0 9 1/0 * *", "day-of-month"),
        ("0 9 L/2 * *", "day of month"),
        ("0 9 * FOO *", "month"),
        ("", "minute hour"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_invalid(schedule: str, says: str) -> None:
    with raises_invalid("schedule", names=(says,)):
        window(schedule=schedule)


@pytest.mark.parametrize(
    "schedule", ["0 9 * * FRI#2", "0 9 L * *", "0 0 29 2 *", "5,10 1-3/2 * JAN-MAR *"]
)
def test_odd_but_right_schedules_are_read(schedule: str) -> None:
    assert judge_windows([window(schedule=schedule)], now=MONDAY).next_change_at is not None


@pytest.mark.parametrize(
    "zone", ["CET+1", "Berlin", "", "../../etc/passwd", "/etc/localtime", "Europe", "x" * 70]
)
def test_an_unknown_time_zone_is_invalid(zone: str) -> None:
    with raises_invalid("timeZone", kind="string_too_long" if len(zone) > 64 else None):
        window(timeZone=zone)


@settings(max_examples=300)
@given(st.text(alphabet="0123456789*/,-#L W?@MONFRIJA\n", max_size=30))
def test_any_schedule_is_read_or_refused_and_nothing_else(schedule: str) -> None:
    with contextlib.suppress(ValidationError):
        judge_windows([window(schedule=schedule)], now=MONDAY)
