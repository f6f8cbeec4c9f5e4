"""The operator is killed at every write of a whole story, and it always ends the same (I5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server import Hit, Moment
from tests.operators.controllers.story import KILLERS, dies, killed, killers, played

from retuned_operator.kube.errors import Conflict, Unavailable

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
"""A Tuesday, half past one in Berlin, in the window."""


@pytest.fixture(scope="module")
def kinds() -> list[str]:
    """Return the writes of the story; without any fault nothing is even repeated."""
    cluster = Cluster(OPEN)
    played(cluster)
    assert cluster.operator.errors == []
    return cluster.api.kinds


def test_a_story_without_faults_has_no_write_too_many(kinds: list[str]) -> None:
    assert 40 < len(kinds) < 200


def answer_lost() -> None:
    raise Unavailable("the connection broke")


def refused() -> None:
    raise Conflict("somebody was faster", status=409)


FAULTS: list[tuple[str, Moment, Callable[[], None], int]] = [
    ("killed", Moment.AFTER, dies, 1),  # dying before a write is dying after the one before it
    ("answer-lost", Moment.AFTER, answer_lost, 4),
    ("refused", Moment.BEFORE, refused, 4),
]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a story for every write: minutes where others use the machine, too
@pytest.mark.parametrize(
    ("when", "does", "every"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS]
)
def test_an_operator_that_is_hit_at_any_write_does_nothing_twice_and_ends_the_same(
    kinds: list[str], when: Moment, does: Callable[[], None], every: int
) -> None:
    hit = Hit(when=when, does=does)
    for fatal in range(0, len(kinds), every):
        try:
            played(Cluster(OPEN), lambda number, *_, at=fatal: hit if number == at else None)
        except AssertionError as error:
            raise AssertionError(f"at {kinds[fatal]} ({fatal})") from error


@pytest.mark.parametrize("writes", KILLERS)
def test_operators_none_of_which_gets_past_a_write_end_the_story_the_same(
    kinds: list[str], writes: str
) -> None:
    killed(Cluster(OPEN), killers(kinds)[writes])
