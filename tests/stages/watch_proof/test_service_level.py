"""Service levels of a server against the bounds of a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.gate import ServiceLevels
from retuned.stages.watch.proof.service_level import (
    LEAST_COUNT,
    Histogram,
    Served,
    breach,
    continues,
)

ENDS_S = (0.1, 0.5, 1.0, math.inf)
_COUNTS = st.lists(st.integers(0, 500), min_size=4, max_size=4)


def histogram(counts: Sequence[float]) -> Histogram:
    """Return a histogram from the values of each bucket."""
    return Histogram(ENDS_S, tuple(float(sum(counts[: i + 1])) for i in range(len(counts))))


def served(counts: Sequence[float], *, waiting: float | None = None) -> Served:
    return Served(at_s=0.0, first_token=histogram(counts), waiting=waiting)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([100, 0, 0, 0], ""),
        ([99, 1, 0, 0], ""),
        ([90, 10, 0, 0], "first token: p99 is 460 ms, above 200 ms"),
        ([90, 0, 0, 10], "first token: p99 is beyond the last bucket, above 200 ms"),
        ([0, 0, 0, LEAST_COUNT - 1], ""),
    ],
)
def test_the_quantile_is_that_of_prometheus(counts: list[int], words: str) -> None:
    bounds = ServiceLevels(ttft_p99_ms=200)
    assert breach(served([0, 0, 0, 0]), served(counts), bounds) == words


def test_only_what_came_between_the_readings_counts() -> None:
    slow, later = [0, 0, 50, 0], [500, 0, 50, 0]
    bounds = ServiceLevels(ttft_p99_ms=200)
    assert breach(served([0, 0, 0, 0]), served(slow), bounds) != ""
    assert breach(served(slow), served(later), bounds) == ""


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (2.0, ""),
        (3.0, "3 requests wait, more than 2"),
        (None, "the server does not count waiting requests"),
    ],
)
def test_a_queue_has_a_bound(waiting: float | None, words: str) -> None:
    now = served([1, 0, 0, 0], waiting=waiting)
    assert breach(now, now, ServiceLevels(max_queue=2)) == words


def test_what_the_server_does_not_count_is_not_met() -> None:
    nothing = Served(at_s=0.0)
    assert "no counts" in breach(nothing, nothing, ServiceLevels(itl_p99_ms=1))
    assert breach(nothing, nothing, ServiceLevels()) == ""


@given(before=_COUNTS, more=_COUNTS)
def test_counts_that_grow_continue(before: list[int], more: list[int]) -> None:
    after = [a + b for a, b in zip(before, more, strict=True)]
    assert continues(served(before), served(after))


@given(before=_COUNTS, after=_COUNTS)
def test_counts_that_shrink_do_not_continue(before: list[int], after: list[int]) -> None:
    shrinks = any(b < a for a, b in zip(before, after, strict=True))
    assert continues(served(before), served(after)) is not shrinks


def test_other_buckets_do_not_continue() -> None:
    other = Served(at_s=0.0, first_token=Histogram((0.2, math.inf), (1.0, 2.0)))
    assert not continues(served([1, 0, 0, 0]), other)
    assert not continues(served([1, 0, 0, 0]), served([math.nan, 0, 0, 0]))
