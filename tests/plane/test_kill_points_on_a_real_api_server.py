"""The story of `tests/operators/controllers` on a real API server: killed at every write (I5).

No operator there gets past a write: each dies at the first one that has not been hit yet, in turn
before the write reaches the API server and after it, before the answer. The next one knows what the
API server knows, and the same is asked of the end as over memory. There each write is also the only
one that is hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.story import KILLERS, killed, killers, played
from tests.operators.world import POLICY
from tests.plane.control_plane import ControlPlane
from tests.plane.real_cluster import SETTINGS, RealServer, real_cluster
from tests.plane.servers import refusal

from retuned_operator.kube.resources import DECISIONS

pytestmark = pytest.mark.plane

AHEAD = timedelta(hours=6)
"""The operators' time is ahead of the API server's, however long a story takes."""


@pytest.fixture
def server(plane: ControlPlane) -> Iterator[RealServer]:
    with real_cluster(plane) as found:
        yield found


def a_cluster(server: RealServer) -> Cluster:
    """Return a cluster whose policy has no windows: nobody sets the API server's clock."""
    policy = yaml.safe_load(POLICY)
    del policy["spec"]["windows"]
    now = datetime.now(UTC).replace(microsecond=0) + AHEAD
    return Cluster(now, jobs=SETTINGS, server=server, policy=policy)


@pytest.fixture(scope="module")
def kinds(plane: ControlPlane) -> list[str]:
    """Return the writes of the story."""
    with real_cluster(plane) as server:
        cluster = a_cluster(server)
        played(cluster)
        assert cluster.operator.errors == []
        metadata = {"name": "forged", "namespace": server.namespace}
        forged = examples.a_decision(user="ada", groups=[]) | {"metadata": metadata}
        ben = server.api.acting_as("ben", ("sre",))
        error = refusal(lambda: ben.create(DECISIONS, forged))
        assert "decisions in another's name" in str(error)
        return cluster.api.kinds


def test_the_story_has_the_same_writes_over_memory(kinds: list[str]) -> None:
    policy = yaml.safe_load(POLICY)
    del policy["spec"]["windows"]
    cluster = Cluster(datetime(2026, 3, 3, 0, 30, tzinfo=UTC), policy=policy)
    played(cluster)
    assert cluster.api.kinds == kinds


@pytest.mark.parametrize("writes", KILLERS)
def test_operators_none_of_which_gets_past_a_write_end_the_story_the_same(
    server: RealServer, kinds: list[str], writes: str
) -> None:
    killed(a_cluster(server), killers(kinds)[writes])
