"""Which size classes of a tunable are worth a search, and the reason where none is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retuned.stages.hypothesis import (
    Hypothesis,
    NotTried,
    Untried,
    UsedClass,
    believe_in_table,
)

NAME = "tunable:attention:kernel:00000000"
LARGE = UsedClass(axes={"rows": 8192}, launches=500, time_us=6e5, gain_ratio=2.0)
SMALL = UsedClass(axes={"rows": 64}, launches=900, time_us=1e5, gain_ratio=1.5)


def believed(*used: UsedClass, **changed: object) -> Hypothesis | Untried:
    words: dict[str, object] = {"busy_us": 1e6, "observed_s": 10.0} | changed
    return believe_in_table(NAME, used, **words)  # type: ignore[arg-type]


def reason(*used: UsedClass, **changed: object) -> NotTried:
    found = believed(*used, **changed)
    assert isinstance(found, Untried), found
    return found.reason


def test_a_hypothesis_has_the_classes_by_what_they_may_save_and_their_launches_a_second() -> None:
    found = believed(SMALL, LARGE)
    assert isinstance(found, Hypothesis)
    assert [(w.axes, w.weight) for w in found.workloads] == [
        ({"rows": 8192}, 50.0),
        ({"rows": 64}, 90.0),
    ]
    assert found.share == pytest.approx(0.7)
    assert found.expected_saving == pytest.approx(0.3 + 1e5 / 3 / 1e6)
    assert found.structures == ("table",)


def test_the_same_classes_in_the_same_world_are_one_hypothesis() -> None:
    one, other = believed(SMALL, LARGE), believed(LARGE, SMALL, busy_us=2e6)
    elsewhere = believed(LARGE, SMALL, world="sha256:" + "1" * 64)
    assert isinstance(one, Hypothesis)
    assert isinstance(other, Hypothesis)
    assert isinstance(elsewhere, Hypothesis)
    assert one.id == other.id != elsewhere.id


def test_each_lack_has_its_reason() -> None:
    seldom = UsedClass(axes={"rows": 1}, launches=7, time_us=1e5, gain_ratio=3.0)
    unseen = UsedClass(axes={"rows": 1}, launches=90, time_us=1e5, gain_ratio=3.0, ready=False)
    untimed = UsedClass(axes={"rows": 1}, launches=90, time_us=0.0, gain_ratio=3.0)
    tuned = UsedClass(axes={"rows": 1}, launches=90, time_us=1e5, gain_ratio=1.0)
    assert reason() is NotTried.NO_TRAFFIC
    assert reason(seldom) is NotTried.NO_TRAFFIC
    assert reason(unseen) is NotTried.NOT_DESCRIBED
    assert reason(untimed) is NotTried.NO_TIME
    assert reason(untimed, replace(untimed, idle=3)) is NotTried.STREAM_IDLE
    assert isinstance(believed(LARGE, replace(untimed, idle=3)), Hypothesis), "another was timed"
    assert reason(tuned) is NotTried.SAVING_TOO_SMALL
    assert reason(LARGE, tried=[LARGE.key]) is NotTried.ALL_TRIED
    assert reason(tuned, in_force=[tuned.key]) is NotTried.IN_FORCE


def test_a_new_class_is_tried_alone_however_much_the_tried_ones_take() -> None:
    tried = [
        UsedClass(axes={"rows": 2**n}, launches=90, time_us=1e5, gain_ratio=3.0)
        for n in range(7, 13)
    ]
    found = believed(*tried, SMALL, tried=[each.key for each in tried if each.key != SMALL.key])
    assert isinstance(found, Hypothesis)
    assert [w.axes["rows"] for w in found.workloads] == [64]


ROUNDED = [
    UsedClass(axes={"rows": rows}, launches=8.0, time_us=time_us, gain_ratio=gain)
    for rows, time_us, gain in (
        (1, 17183417029.10831, 0.0),
        (4, 17176321339.0, 0.0),
        (2, 257694489915.0, 2.0),
    )
]
"""Their sum depends on the order."""


@example(ROUNDED, 0.0)
@given(
    st.lists(
        st.builds(
            UsedClass,
            axes=st.fixed_dictionaries({"rows": st.sampled_from([2**n for n in range(14)])}),
            launches=st.floats(0, 1e9),
            time_us=st.floats(0, 1e12),
            gain_ratio=st.floats(0, 100),
            ready=st.booleans(),
        ),
        max_size=8,
        unique_by=lambda each: each.key,
    ),
    st.floats(0, 1e9),
)
def test_shares_and_savings_are_parts_of_one_whatever_a_server_reports(
    used: list[UsedClass], busy_us: float
) -> None:
    found = believed(*used, busy_us=busy_us)
    if isinstance(found, Hypothesis):
        assert 0.0 < found.expected_saving <= found.share <= 1.0
        assert found.expected_gain_ratio > 1.0
