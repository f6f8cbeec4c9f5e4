"""What a measurement of Retuned's own cost leads to."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.watch.own_overhead import (
    AFTER,
    AGAIN,
    BUDGET,
    EVERY,
    SHARES,
    OverheadOutcome,
    OverheadRecord,
    is_due,
    judged,
)
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict

AT = datetime(2026, 11, 28, 12, tzinfo=UTC)


def report(verdict: Verdict, low: float, effect: float, high: float | None) -> ProofReport:
    return ProofReport(
        verdict=verdict,
        reason=ProofReason.SLOWER,
        effect=math.log1p(effect),
        low=math.log1p(low),
        high=None if high is None else math.log1p(high),
    )


def record(share: float = 1.0) -> OverheadRecord:
    return OverheadRecord(
        at=AT,
        outcome=OverheadOutcome.LOWERED,
        share=share,
        report=report(Verdict.HARMS, 0.02, 0.03, 0.04),
    )


@pytest.mark.parametrize(
    ("high", "share", "outcome"),
    [
        (0.035, 0.25, OverheadOutcome.LOWERED),
        (0.06, 0.1, OverheadOutcome.LOWERED),
        (0.20, 0.03, OverheadOutcome.LOWERED),
        (0.50, 0.03, OverheadOutcome.OVER_BUDGET),
    ],
)
def test_the_upper_end_decides_how_often_launches_are_counted(
    high: float, share: float, outcome: OverheadOutcome
) -> None:
    found = judged(report(Verdict.HARMS, 0.012, 0.02, high), share_before=1.0, at=AT)
    assert (found.share, found.outcome) == (share, outcome)


def test_a_cost_below_the_budget_lets_everything_be_counted_again() -> None:
    none = report(Verdict.NO_MEASURABLE_EFFECT, 0.0, 0.002, 0.006)
    found = judged(none, share_before=0.1, at=AT)
    assert (found.share, found.outcome) == (1.0, OverheadOutcome.WITHIN_BUDGET)
    assert found.sentence == "Retuned adds 0.20 % (0.00 to 0.60 %) to a step"


@pytest.mark.parametrize("verdict", [Verdict.TOO_LITTLE_TRAFFIC, Verdict.NOT_CONCLUDED])
def test_an_unknown_cost_changes_no_share(verdict: Verdict) -> None:
    unknown = report(verdict, -0.1, 0.02, 0.3)
    assert judged(unknown, share_before=1.0, at=AT).share == 1.0
    found = judged(unknown, share_before=0.1, at=AT)
    assert (found.share, found.outcome) == (0.1, OverheadOutcome.UNKNOWN)


@pytest.mark.parametrize(
    ("high", "share", "outcome"),
    [
        (0.025, 0.25, OverheadOutcome.LOWERED),
        (0.06, 0.1, OverheadOutcome.LOWERED),
        (0.12, 1.0, OverheadOutcome.UNKNOWN),
        (None, 1.0, OverheadOutcome.UNKNOWN),
    ],
)
def test_a_cost_that_may_be_too_much_is_bounded_where_the_interval_is_narrow(
    high: float | None, share: float, outcome: OverheadOutcome
) -> None:
    found = judged(report(Verdict.TOO_LITTLE_TRAFFIC, -0.01, 0.008, high), share_before=1.0, at=AT)
    assert (found.share, found.outcome) == (share, outcome)


@given(
    low=st.floats(0.0, 0.5),
    over=st.floats(0.0, 0.5),
    high=st.one_of(st.none(), st.floats(0.0, 2.0)),
)
def test_a_lowered_share_leaves_less_than_the_budget(
    low: float, over: float, high: float | None
) -> None:
    most = None if high is None else low + over + high
    found = judged(report(Verdict.HARMS, low, low + over, most), share_before=1.0, at=AT)
    assert found.share in SHARES[1:]
    if found.outcome is OverheadOutcome.LOWERED and most is not None:
        assert found.share * most < BUDGET * (1 + 1e-9)
    else:
        assert most is None or found.share == SHARES[-1] or most * found.share < BUDGET


def test_a_cost_without_an_upper_end_is_taken_for_twice_what_was_seen() -> None:
    found = judged(report(Verdict.HARMS, 0.011, 0.05, None), share_before=1.0, at=AT)
    assert found.share == SHARES[3]


def test_it_is_measured_ten_minutes_after_the_begin_and_once_a_day() -> None:
    assert not is_due(None, began_at=AT, now=AT + AFTER - timedelta(seconds=1))
    assert is_due(None, began_at=AT, now=AT + AFTER)
    last, later = record(), AT + timedelta(days=9)
    assert not is_due(last, began_at=AT, now=AT + EVERY - timedelta(seconds=1))
    assert is_due(last, began_at=AT, now=later)
    assert not is_due(last, began_at=later, now=later), "a daemon that starts waits"
    unknown = last.model_copy(update={"outcome": OverheadOutcome.UNKNOWN})
    assert not is_due(unknown, began_at=AT, now=AT + AGAIN - timedelta(seconds=1))
    assert is_due(unknown, began_at=AT, now=AT + AGAIN)
