"""The operator is killed at every write of a whole story, and it always ends the same (I5)."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
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
    branches = Branches(Hit(when=when, does=does), range(0, len(kinds), every))
    branches.play()
    assert sorted(branches.ended) == list(range(0, len(kinds), every))
    failed = [f"at {kinds[at]} ({at})" for at, code in branches.ended.items() if code]
    assert failed == []


class Branches:
    """One story, and from each of some writes on the same story with a hit there.

    Up to the hit, a story is the one without it: a copy of this process plays only the rest.

    Parameters
    ----------
    hit
        What happens to the write.
    writes
        Numbers of the writes that are hit, each in a copy of its own.
    """

    def __init__(self, hit: Hit, writes: Iterable[int]) -> None:
        self.hit = hit
        self.writes = frozenset(writes)
        self.ended: dict[int, int] = {}
        """How each copy ended, 0 if its story ended well, by the number of the write."""
        self._parent = os.getpid()

    def play(self) -> None:
        """Play the story and its branches to their ends."""
        try:
            played(Cluster(OPEN), self._hits)
        except BaseException:
            if os.getpid() == self._parent:
                raise
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        if os.getpid() != self._parent:
            os._exit(0)

    def _hits(self, number: int, kind: str, name: str) -> Hit | None:
        if os.getpid() != self._parent:
            return None
        if number not in self.writes:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the copy uses no other thread
            child = os.fork()
        if child == 0:
            return self.hit
        self.ended[number] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return None


@pytest.mark.parametrize("writes", KILLERS)
def test_operators_none_of_which_gets_past_a_write_end_the_story_the_same(
    kinds: list[str], writes: str
) -> None:
    killed(Cluster(OPEN), killers(kinds)[writes])
