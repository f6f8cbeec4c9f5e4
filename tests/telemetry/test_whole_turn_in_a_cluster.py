"""A turn of the loop through a cluster, from a pod's drift to its rollback, as a collector sees it.

The operator's controllers and store, and one pod's sidecar, are the real ones; the API server is
the fake one without HTTP, Jobs and people are played. What both sides say of spans over HTTP is in
``tests/conformance/test_operator_port.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import KERNEL, FakeLedger
from tests.operators.controllers.server_pods import SERVER
from tests.sidecar.sidecar_world import CLEAN, PodWorld
from tests.telemetry.receiver import NEVER_S, Collector, Seen, collecting
from tests.telemetry.test_whole_turn import assert_connected

from retuned.api.agent import Ack, Hello, OrderDone, Orders, PodRef, Report, Welcome, as_orders
from retuned.ports import Spans
from retuned.runtime_client.fake import FakeSwapper
from retuned.sidecar.operator_fake import FakeOperator
from retuned.stages.hypothesis import Hypothesis
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.otlp import open_spans
from retuned.traces.folder import FakeTraceSource
from retuned_operator.agent_api.ports import PodRecord, Receipt, Said
from retuned_operator.controllers.ports import OpenDrift
from retuned_operator.kube.resources import JOBS
from retuned_operator.manifests.names import EXPERIMENT_UID
from retuned_operator.pods import CachedFleet
from retuned_operator.schema import ProposalPhase
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.results import ResultFolder

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
TURN = {"observe", "drift", "heard", "hypothesis", "experiment", "lab", "proposal", "gate", "swap",
        "order", "deliver", "watch", "rollback"}  # fmt: skip
HARM = {**CLEAN, "shadow_mismatches": 1, "worst_ratio": 9.0}


class Ledger(FakeLedger):
    """What experiments find is played; drift and beliefs are in the operator's own store."""

    def __init__(self, folder: Path, cluster: Cluster, spans: Spans) -> None:
        super().__init__()
        store = SqliteStore(folder / "state", clock=cluster.clock, carried=spans.carried)
        self.store = store
        self.real = StoreLedger(
            store,
            Ed25519Notary(folder / "keys"),
            artifacts=folder / "artifacts",
            results=ResultFolder(folder / "results"),
            spans=spans,
        )

    def take(self, receipt: Receipt, said: Said) -> None:
        self.real.take(receipt, said)

    def drifts(self, target: str) -> Sequence[OpenDrift]:
        return self.real.drifts(target)

    def answered(self, drifted: OpenDrift) -> None:
        self.real.answered(drifted)

    def believe(self, belief: Hypothesis) -> None:
        super().believe(belief)
        self.real.believe(belief)


class Link(FakeOperator):
    """The agent API between the sidecar and the operator that there is now."""

    def __init__(self, cluster: Cluster, pod: PodRef) -> None:
        super().__init__(pod, target="serving/chat")
        self.cluster = cluster
        self.record = PodRecord(
            namespace=pod.namespace, name=pod.name, uid=pod.uid, target="serving/chat"
        )

    def hello(self, hello: Hello) -> Welcome:
        self._pass(hello, "")
        return super().hello(hello)

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        self._pass(report, traceparent)
        return super().post(report, traceparent=traceparent)

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        self._pass(said, traceparent)
        super().done(said, traceparent=traceparent)

    def orders(self, *, after: int, wait_s: float) -> Orders:
        world = self.cluster.operator.world
        fleet = CachedFleet(world.caches, artifact=lambda _: None, key=str)
        ordered = fleet.orders(self.record)
        self.order(*ordered)
        traces = dict(fleet.traces(self.record, ordered))
        return as_orders(ordered).model_copy(update={"traces": traces})

    def _pass(self, said: Said, traceparent: str) -> None:
        receipt = Receipt(pod=self.record, at=self.cluster.clock.now(), traceparent=traceparent)
        self.cluster.operator.reports.take(receipt, said)


class Played:
    """A cluster with one server, whose sidecar is the real one."""

    def __init__(self, folder: Path, *, operator: Spans, sidecar: Spans) -> None:
        self.cluster = Cluster(OPEN, pods=1, spans=operator)
        (server,) = self.cluster.servers.values()
        server.says = "silent"
        self.ledger = Ledger(folder / "operator", self.cluster, operator)
        self.cluster.ledger = self.ledger
        self.restart()
        self.pod = PodWorld(folder / "pod", spans=sidecar)
        ref = PodRef(namespace="serving", name=server.name, uid=server.uid)
        self.pod.clock = self.cluster.clock
        self.pod.traces = FakeTraceSource()
        self.pod.swapper = FakeSwapper((KERNEL,), runs_on=SERVER.environment())
        self.pod.swapper.counts[KERNEL] = dict(CLEAN)
        self.pod.operator = link = Link(self.cluster, ref)
        link.key = self.pod.notary.public_hex()
        self.pod.start()

    def restart(self) -> None:
        """Let another operator begin, which knows what is in the API server and in the store."""
        self.cluster.restart()
        self.cluster.operator.reports._archive = self.ledger
        self.cluster.operator.sync()

    def turn(self) -> None:
        self.pod.turn()
        self.cluster.turn(seconds=29.0)

    def window(self, kernel: str) -> None:
        """Let a window pass in which the server is busy with one kernel."""
        self.pod.trace(kernel, launches=20_000)
        self.turn()
        self.turn()
        self.turn()

    def until(self, phase: ProposalPhase, *, turns: int = 120) -> None:
        for _ in range(turns):
            found = [each.status.phase for each in self.cluster.proposals()]
            if found == [phase]:
                return
            self.turn()
        raise AssertionError((found, self.cluster.operator.errors[-3:]))

    def close(self) -> None:
        self.pod.ctx.store.close()
        self.ledger.store.close()


@dataclass(frozen=True)
class Told:
    """A turn that was played, and what the collector has of it."""

    world: Played
    collector: Collector

    @property
    def turn(self) -> list[Seen]:
        """The spans of the turn that ended in a swap."""
        mine = self.collector.named("swap")
        (swap,) = (span for span in mine if span.service == "retuned-operator")
        return [span for span in self.collector.spans if span.trace_id == swap.trace_id]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Play a turn in which operator and sidecar are killed twice on the way."""
    with collecting() as collector:
        world = played(tmp_path_factory.mktemp("turn"), collector)
        yield Told(world=world, collector=collector)


def played(folder: Path, collector: Collector) -> Played:
    operator = open_spans("retuned-operator", url=collector.url)
    sidecar = open_spans("retuned-sidecar", url=collector.url)
    world = Played(folder, operator=operator, sidecar=sidecar)
    for _ in range(4):
        world.window("other")
    for _ in range(5):
        world.window("rmsnorm")
    world.until(ProposalPhase.AWAITING_APPROVAL)
    (proposal,) = world.cluster.proposals()
    world.pod.publish(proposal.spec.artifact.digest, name=KERNEL)
    world.restart()
    for name in ("ada", "ben"):
        world.cluster.say(name)
    world.until(ProposalPhase.ANALYZING)
    world.restart()
    world.pod.start()
    for _ in range(4):
        world.turn()
    assert world.pod.active(KERNEL) == proposal.spec.artifact.digest
    world.pod.swapper.counts[KERNEL] = dict(HARM)
    world.until(ProposalPhase.ROLLED_BACK)
    operator.close()
    sidecar.close()
    world.close()
    return world


def test_one_whole_turn_is_one_trace_over_pod_operator_and_pod_again(told: Told) -> None:
    turn = told.turn
    assert {span.name for span in turn} >= TURN
    known = {span.span_id for span in turn}
    roots = [span for span in turn if not span.parent_id]
    assert [(span.name, span.service) for span in roots] == [("observe", "retuned-sidecar")]
    assert all(span.parent_id in known for span in turn if span.parent_id), "none hangs in the air"
    assert_connected(turn)
    by = {span.span_id: span for span in turn}
    (heard,) = (span for span in turn if span.name == "heard")
    assert (by[heard.parent_id].name, by[heard.parent_id].service) == ("drift", "retuned-sidecar")
    orders = [span for span in turn if span.name == "order"]
    assert by[orders[0].parent_id].name == "swap"
    assert by[orders[0].parent_id].service == "retuned-operator"
    assert told.world.cluster.operator.errors == []


def test_the_operators_rollback_links_to_the_pods_which_goes_on_from_its_watch(told: Told) -> None:
    by = {span.span_id: span for span in told.turn}
    back = [span for span in told.turn if span.name == "rollback"]
    (pods,) = (span for span in back if span.service == "retuned-sidecar")
    (operators,) = (span for span in back if span.service == "retuned-operator")
    assert by[pods.parent_id].name == "watch"
    assert (pods.trace_id, pods.span_id) in operators.links
    assert pods.about["retuned.reason"] == "shadow-mismatch"


def test_jobs_and_their_pods_are_told_which_turn_they_belong_to(told: Told) -> None:
    (experiment,) = told.world.cluster.experiments()
    trace_id = told.turn[0].trace_id
    jobs = [
        body
        for body in told.world.cluster.all(JOBS)
        if body["metadata"]["labels"][EXPERIMENT_UID] == experiment.metadata.uid
    ]
    assert len(jobs) >= 2, "one that searches, one that verifies"
    for body in jobs:
        template = body["spec"]["template"]
        (runner,) = template["spec"]["containers"]
        env = {each["name"]: each.get("value", "") for each in runner["env"]}
        assert env["TRACEPARENT"][3:35] == trace_id
        assert template["metadata"]["annotations"]["retuned.dev/traceparent"][3:35] == trace_id


def test_looks_at_which_nothing_happens_leave_no_span(told: Told) -> None:
    assert len(told.turn) < 40
    assert len(told.collector.named("gate")) <= 8


@pytest.mark.parametrize("status", [200, 500])
def test_a_collector_that_is_away_or_slow_stops_nothing(tmp_path: Path, status: int) -> None:
    with collecting(patient=False) as collector:
        collector.status, collector.delay_s = status, NEVER_S
        spans = open_spans("retuned-operator", url=collector.url)
        cluster = Cluster(OPEN, spans=spans)
        cluster.experiment()
        cluster.until(lambda: bool(cluster.proposals()))
        spans.close()
        assert collector.answered == 0, "nothing waited for it"
        assert cluster.operator.errors == []
