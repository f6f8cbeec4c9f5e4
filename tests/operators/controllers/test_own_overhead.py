"""What Retuned costs the servers of a cluster: one pod measures, the operator computes it again."""

from __future__ import annotations

import functools
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.node.test_own_overhead import Measured
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server import Died, Hit, Moment
from tests.operators.controllers.server_pods import ServerPod
from tests.operators.world import POLICY

from retuned.api.agent import OverheadOrder, PodOverhead
from retuned.api.target import OwnOverheadState
from retuned.node.own_overhead import OverheadKeeper, pairs_of
from retuned.stages.watch.own_overhead import AFTER
from retuned.stages.watch.proof import Verdict
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.kube.resources import PODS, POLICIES

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)


@functools.cache
def measured(folder: Path, effect: float) -> PodOverhead:
    """Return what an honest pod reports of wrappers that make steps longer by this."""
    server, store = Measured(effect), SqliteStore(folder)
    telemetry = FakeTelemetry()
    keeper = OverheadKeeper(
        server, live=server, store=store, clock=server, telemetry=telemetry, reports=True
    )
    for after_s in (0.0, AFTER.total_seconds()):
        server.at_s += after_s
        keeper.keep_up(threading.Event(), wanted=lambda: True)
    found = pairs_of(store)
    assert found is not None
    return PodOverhead(at=OPEN, engine=found.engine, claim=found.claim)


@pytest.fixture(scope="module")
def dear(tmp_path_factory: pytest.TempPathFactory) -> PodOverhead:
    return measured(tmp_path_factory.mktemp("dear"), 0.035)


@pytest.fixture(scope="module")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> PodOverhead:
    return measured(tmp_path_factory.mktemp("cheap"), 0.002)


def policy(**rule: Any) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(POLICY)
    body["spec"]["liveProof"] = rule
    return body


def begun(**rule: Any) -> Cluster:
    cluster = Cluster(OPEN, policy=policy(**rule))
    for server in cluster.servers.values():
        server.steps = ""
    turns(cluster)
    return cluster


def turns(cluster: Cluster, count: int = 3) -> None:
    for _ in range(count):
        cluster.turn()


def entry(cluster: Cluster) -> OwnOverheadState:
    (found,) = cluster.target().status.own_overhead
    return found


def measuring(cluster: Cluster) -> list[ServerPod]:
    return [s for s in cluster.servers.values() if s.overhead is not None and s.overhead.measure]


def test_one_pod_measures_and_the_others_follow(dear: PodOverhead) -> None:
    cluster = begun()
    (server,) = measuring(cluster)
    for each in cluster.servers.values():
        each.costs = dear
    turns(cluster)
    found = entry(cluster)
    assert (found.name, found.outcome, found.engine) == (server.name, "lowered", "vllm 0.26.0")
    assert found.share < 1.0
    assert found.high is not None
    assert found.high > 0.01
    assert f"{found.share:.0%} of the time" in found.sentence
    assert server.overhead is not None
    assert server.overhead.heard == dear.at
    others = [each for each in cluster.servers.values() if each is not server]
    assert [each.overhead for each in others] == [
        OverheadOrder(shares={found.environment: found.share})
    ] * 2
    (note,) = cluster.events("OwnOverhead")
    assert found.sentence in note
    assert cluster.operator.errors == []


def test_a_cost_below_the_budget_changes_nothing_for_the_others(cheap: PodOverhead) -> None:
    cluster = begun()
    (server,) = measuring(cluster)
    server.costs = cheap
    turns(cluster)
    assert (entry(cluster).outcome, entry(cluster).share) == ("within-budget", 1.0)
    assert [s.overhead for s in cluster.servers.values() if s is not server] == [None, None]


@pytest.mark.parametrize("lie", ["verdict", "pairs", "sums"])
def test_what_does_not_follow_from_the_pairs_changes_no_share(
    dear: PodOverhead, cheap: PodOverhead, lie: str
) -> None:
    cluster = begun()
    (server,) = measuring(cluster)
    claim = dear.claim
    match lie:
        case "verdict":
            claim = cheap.claim.model_copy(update={"verdict": Verdict.HARMS})
        case "pairs":
            claim = claim.model_copy(update={"pairs": claim.pairs[:2]})
        case "sums":
            bad = claim.pairs[-1]
            sums = bad.on.model_copy(update={"seconds": -1.0})
            last = bad.model_copy(update={"on": sums})
            claim = claim.model_copy(update={"pairs": (*claim.pairs[:-1], last)})
    server.costs = dear.model_copy(update={"claim": claim})
    turns(cluster)
    found = entry(cluster)
    assert (found.outcome, found.share) == ("unknown", 1.0)
    assert "(contradicted)" in found.sentence


@pytest.mark.parametrize("rule", [{"ownOverhead": "off"}, {"mode": "off"}])
def test_a_policy_says_no(rule: dict[str, Any]) -> None:
    assert measuring(begun(**rule)) == []
    cluster = begun()
    assert len(measuring(cluster)) == 1
    cluster.change(POLICIES, "prod", {"spec": {"liveProof": rule}})
    turns(cluster)
    assert measuring(cluster) == []
    assert len(cluster.target().status.own_overhead) == 1


def test_a_policy_that_cannot_be_read_says_no() -> None:
    cluster = begun()
    window = {"kind": "allow", "schedule": "61 2 * * *", "duration": "3h"}
    cluster.change(POLICIES, "prod", {"spec": {"windows": [window]}})
    turns(cluster)
    assert measuring(cluster) == []


def test_a_pod_that_is_gone_is_replaced(dear: PodOverhead) -> None:
    cluster = begun()
    (server,) = measuring(cluster)
    server.costs = dear
    turns(cluster)
    share = entry(cluster).share
    del cluster.servers[server.uid]
    cluster.remove(PODS, server.name)
    turns(cluster)
    (other,) = measuring(cluster)
    assert (entry(cluster).name, entry(cluster).share) == (other.name, share)
    cluster.restart()
    turns(cluster)
    assert measuring(cluster) == [other]


def test_a_pod_whose_steps_cannot_be_timed_is_not_asked() -> None:
    cluster = Cluster(OPEN, policy=policy())
    first, second, third = cluster.servers.values()
    first.steps, second.steps, third.steps = "several-ranks", None, ""
    turns(cluster)
    assert measuring(cluster) == [third]


def dies() -> None:
    raise Died


@pytest.mark.parametrize("when", [Moment.BEFORE, Moment.AFTER])
def test_an_operator_that_is_killed_at_any_write_ends_the_same(
    dear: PodOverhead, when: Moment
) -> None:
    plain = begun()
    base = len(plain.api.kinds)
    lived(plain, dear)
    for fatal in range(base, len(plain.api.kinds)):
        cluster = begun()
        hit = Hit(when=when, does=dies)
        cluster.api.hits = lambda number, *_, at=fatal, what=hit: what if number == at else None
        lived(cluster, dear)
        assert without_times(entry(cluster)) == without_times(entry(plain)), plain.api.kinds[fatal]
        assert len(measuring(cluster)) == 1


def lived(cluster: Cluster, costs: PodOverhead) -> None:
    (server,) = measuring(cluster)
    server.costs = costs
    for _ in range(6):
        try:
            cluster.turn()
        except Died:
            cluster.restart()


def without_times(found: OwnOverheadState) -> dict[str, Any]:
    return found.model_dump(exclude={"at", "uid"})


def test_a_later_measurement_replaces_the_first(dear: PodOverhead, cheap: PodOverhead) -> None:
    cluster = begun()
    (server,) = measuring(cluster)
    server.costs = dear
    turns(cluster)
    server.costs = cheap.model_copy(update={"at": OPEN + timedelta(days=1)})
    turns(cluster)
    assert (entry(cluster).outcome, entry(cluster).share) == ("within-budget", 1.0)
    assert len(cluster.events("OwnOverhead")) == 2
