"""The plot of drift: windows that were judged, in a unit of time that reads well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from retuned.review.figures import drift_figure
from retuned.review.records import DriftLine
from retuned.stages.drift import DriftAction, DriftReport

NEWEST = datetime(2026, 11, 2, 12, tzinfo=UTC)


def line(minutes: float, **body: Any) -> DriftLine:
    at = NEWEST - timedelta(minutes=minutes)
    values = {"detected": False, "action": DriftAction.NONE, "reasons": (), "distance": 0.3}
    values |= {"window_start_ns": int(at.timestamp() * 1e9), "sentence": "x"} | body
    return DriftLine(
        key=f"{minutes}", target="chat", at=at, report=DriftReport.model_validate(values)
    )


def test_a_window_that_was_not_judged_is_not_drawn_and_is_counted() -> None:
    sampled = line(4, skipped="not-counted", distance=0.0)
    drawn = drift_figure([line(6), sampled, line(2), line(0)], "distance")
    assert drawn.wide.count("<circle") == 3
    assert drawn.caption.endswith("1 window not judged, and not drawn.")
    assert "not judged" not in drift_figure([line(0)], "cusum").caption


@pytest.mark.parametrize(
    ("minutes", "unit"), [(1, "seconds"), (30, "minutes"), (300, "hours"), (9000, "days")]
)
def test_the_axis_has_the_unit_of_what_it_shows(minutes: float, unit: str) -> None:
    drawn = drift_figure([line(minutes), line(0)], "distance")
    assert f"{unit} before the newest window" in drawn.wide


def test_no_window_at_all_is_an_empty_plot() -> None:
    assert drift_figure([], "distance").wide
