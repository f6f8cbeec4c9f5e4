from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.profiler.schedule import (
    MAX_PAUSE_S,
    MIN_LENGTH_S,
    Cost,
    Rule,
    first_length,
    first_pause,
    next_length,
    next_pause,
    rule_of,
)

CHANCES = st.floats(0.0, 1.0, exclude_max=True)
SECONDS = st.floats(0.0, 30.0)


@given(open_s=SECONDS, beside_s=SECONDS, stalled_s=SECONDS, chance=CHANCES)
def test_windows_take_no_more_than_the_budget_of_all_time_unless_the_next_is_an_hour_away(
    open_s: float, beside_s: float, stalled_s: float, chance: float
) -> None:
    rule = Rule(every_s=90.0, budget_ratio=0.01)
    cost = Cost(open_s=open_s, beside_s=beside_s, stalled_s=stalled_s)
    pause_s = next_pause(rule, cost, chance)
    assert rule.every_s <= pause_s <= MAX_PAUSE_S
    assert cost.total_s <= rule.budget_ratio * pause_s * 1.000001 or pause_s == MAX_PAUSE_S


@given(length_s=st.floats(MIN_LENGTH_S, 0.2), stalled_s=SECONDS)
def test_a_window_is_never_longer_than_asked_and_shorter_after_it_stalled_the_server(
    length_s: float, stalled_s: float
) -> None:
    rule = Rule(length_s=0.2)
    following_s = next_length(rule, length_s, Cost(stalled_s=stalled_s))
    assert MIN_LENGTH_S <= following_s <= rule.length_s
    if stalled_s > 0.021:
        assert following_s < length_s or following_s == MIN_LENGTH_S


def test_the_first_window_is_short_and_replicas_do_not_coincide() -> None:
    rule = Rule(every_s=100.0, length_s=0.2)
    assert first_length(rule) == pytest.approx(0.025)
    assert first_pause(rule, 0.1) != first_pause(rule, 0.9)
    assert 10.0 <= first_pause(rule, 0.999) <= 100.0


@pytest.mark.parametrize("said", ["soon", "0.0", "-5", "nan", "1e9", "90; rm"])
def test_a_value_that_cannot_be_used_is_said_and_the_default_stands(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = rule_of({"RETUNED_TRACE_DIR": "/traces", "RETUNED_PROFILE_EVERY_S": said})
    assert found == Rule()
    assert "RETUNED_PROFILE_EVERY_S" in caplog.text


@pytest.mark.parametrize("said", ["off", "OFF", " 0 ", "false"])
def test_nothing_is_profiled_where_it_is_switched_off_or_no_folder_is_named(said: str) -> None:
    assert rule_of({"RETUNED_TRACE_DIR": "/traces", "RETUNED_PROFILE": said}) is None
    assert rule_of({"RETUNED_TRACE_DIR": " "}) is None
    assert rule_of({"RETUNED_PROFILE": "on"}) is None
    assert rule_of({"RETUNED_TRACE_DIR": "/traces", "RETUNED_PROFILE_EVERY_S": "0"}) is None
