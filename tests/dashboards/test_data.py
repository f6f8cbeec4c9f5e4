"""Every query of the dashboards returns data from a Prometheus that scraped real stages at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from tests.conformance.test_telemetry import served
from tests.dashboards.panels import Query, queries
from tests.dashboards.rules import alerts
from tests.dashboards.scraping import Prometheus
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server_pods import WORLD
from tests.operators.controllers.test_swaps import OPEN, OTHER, agree, propose, reached
from tests.operators.program import test_program
from tests.sidecar.sidecar_world import FIRST, SECOND, PodWorld, swap
from tests.standalone.local_world import KERNEL, World

from retuned.node import metrics
from retuned.node.gpu import FakeDevices
from retuned.notify.alertmanager import Alertmanager
from retuned.notify.messages import Place
from retuned.notify.sender import Sender
from retuned.ports import DeviceState
from retuned.stages.gate import DecisionKind, TuningFreeze
from retuned.standalone import notifications
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.store.approvals import Approvals
from retuned.telemetry import Exporter
from retuned.telemetry.prometheus import PrometheusTelemetry
from retuned_operator.assembly import Operator
from retuned_operator.kube.resources import PROPOSALS, TARGETS
from retuned_operator.manifests.roles import (
    experiment_rules,
    own_rules,
    reviewing_rules,
    watching_rules,
)
from retuned_operator.metrics import ClusterMetrics
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.schema import proposal_spec
from retuned_operator.settings import load_settings

pytestmark = [pytest.mark.monitoring, pytest.mark.slow, pytest.mark.timeout(900)]
QUERIES = queries()
SILENT = {
    "retuned_end_to_end_total": "a server with an endpoint, and hours",
    "retuned_live_proof_verdicts_total": "a server whose steps are known",
    "retuned_own_overhead_measurements_total": "a server whose steps are known, and ten minutes",
    "retuned_alarm_attributions_total": "an alarm on a server with swaps",
    "retuned_proposals_refused_total": "a win that is not worth it",
    "retuned_canary_steps_total": "a canary, which takes hours",
    "retuned_pages_total": "a way back that fails in a cluster",
    "retuned_rollbacks_failed_total": "a way back that fails",
}
"""Metrics that stand at 0 in this run, and what it would take; their series are there."""
UNSEEN = {
    "retuned_operator_watch_restarts_total": "a watch that breaks off",
    "retuned_own_overhead_ratio": "a server whose steps are known, and ten minutes",
    "retuned_sentinel_effect_ratio": "a server whose steps are known",
    "retuned_swap_paused": "a metric without data",
    "retuned_swap_rollback_failed": "a way back that fails",
}
"""Metrics without a series in this run: their labels are names of what has happened."""


MUST_FIRE = {
    "RetunedSwapAwaitingApproval",
    "RetunedSwapRolledBack",
    "RetunedStepFailing",  # the policies were away for a look
    # the machine's clock stands long before Prometheus'
    "RetunedFreezeActiveTooLong",
    "RetunedSamplerDown",
    "RetunedSwapApprovalExpiringSoon",
}
"""Alerts whose expressions hold at the end of this run."""
MUST_NOT = {
    "RetunedSwapRollbackFailed",
    "RetunedSwapPaused",
    "RetunedBreakGlassUsed",
    "RetunedNotScraped",
    "RetunedOperatorNotLeading",
}
"""Alerts about what did not happen in it."""


class OneMachine:
    """The daemon's real loop, from first traffic to a swap and its way back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(folder)
        self.telemetry = PrometheusTelemetry(Exporter.DAEMON)
        metrics.begin(self.telemetry, self.world.clock)
        device = DeviceState(
            gpu="nvidia-0",
            core_hz=1.5e9,
            core_max_hz=2e9,
            memory_hz=2.6e9,
            power_w=600.0,
            power_limit_w=700.0,
            temperature_c=70.0,
            throttled=frozenset({"power"}),
            busy_ratio=0.9,
            memory_used_bytes=1 << 33,
            processes=(1,),
        )
        ctx = replace(self.world.loop.ctx, telemetry=self.telemetry, devices=FakeDevices([device]))
        self.world.loop = Loop(ctx)
        self.world.loop.turn()

    def drift(self) -> None:
        """Let traffic drift until a proposal waits."""
        world = self.world
        for m in [4] * 8 + [512] * 30:
            world.window(m)
            world.loop.turn()
            if world.store.ids(RecordKind.PROPOSAL, phase="AwaitingApproval"):
                return self.tell()
        raise AssertionError("nothing was proposed")

    def tell(self) -> None:
        """Let the channels say it, to an Alertmanager that is not there."""
        store, sink = self.world.store, Alertmanager(url="http://127.0.0.1:1", token=None)
        sender = Sender([sink], clock=self.world.clock, telemetry=self.telemetry)
        sender.run_pass(lambda now: notifications.notices_of(store, sender, Place(), now))
        assert sender.opened()

    def swap(self) -> None:
        """Let the policies be away for a look; then approve, swap, and let the variant serve."""
        world = self.world
        world.policies_gone = True
        world.loop.steer()
        world.policies_gone = False
        world.clock.advance(1.0)
        world.approve_what_waits()
        world.loop.turn()
        self.serve(mismatches=0)

    def serve(self, *, mismatches: int) -> None:
        """Let the runtime count."""
        self.world.server.counts[KERNEL] = {
            "swapped_launches": 2_000,
            "fallback_launches": 500,
            "shadow_checks": 60,
            "shadow_mismatches": mismatches,
            "shadow_s": 0.1,
            "slowdown": 0.5,
            "worst_ratio": 0.2,
        }
        self.world.loop.show()

    def go_back(self) -> None:
        """Let the variant differ, so that it is taken back."""
        self.serve(mismatches=5)
        self.world.loop.steer()
        assert self.world.phases(RecordKind.PROPOSAL) == ["RolledBack"]

    def stop(self) -> None:
        """Put up a freeze."""
        people, now = Approvals(self.world.store), self.world.clock.now()
        people.freeze(TuningFreeze(id="stop", user="ada", at=now))
        self.world.loop.show()


class OnePod:
    """A real sidecar's steps."""

    def __init__(self, folder: Path) -> None:
        self.pod = PodWorld(folder)
        self.telemetry = PrometheusTelemetry(Exporter.SIDECAR)
        metrics.begin(self.telemetry, self.pod.clock)
        self.pod.telemetry = self.telemetry  # type: ignore[assignment]
        self.pod.start()
        self.pod.turn()

    def swap(self, epoch: int) -> None:
        """Carry out a good order and refuse a bad one."""
        self.pod.publish(FIRST)
        self.pod.trace(number=epoch)
        self.pod.order(swap(FIRST, epoch=epoch, proposal=f"p{epoch}"))
        self.pod.swapper.counts["gemm"] = {
            "swapped_launches": 100 * epoch,
            "fallback_launches": 10,
            "shadow_checks": epoch,
            "shadow_s": 0.1,
            "slowdown": 0.5,
        }
        self.pod.swapper.refuse[SECOND] = "self-check-failed"
        self.pod.publish(SECOND, name="norm")
        self.pod.order(swap(SECOND, epoch=epoch + 1, proposal=f"q{epoch}", name="norm"))


class OneCluster:
    """The operator's real controllers over objects in memory."""

    def __init__(self) -> None:
        self.cluster = Cluster(OPEN)
        self.telemetry = PrometheusTelemetry(Exporter.OPERATOR)
        self.cluster.telemetry = self.telemetry  # type: ignore[assignment]
        self.cluster.restart()

    def work(self) -> None:
        """Run an experiment to its end, and promote a swap."""
        cluster = self.cluster
        cluster.experiment()
        cluster.until(lambda: all(e.status.phase.is_terminal for e in cluster.experiments()))
        for each in cluster.proposals():
            cluster.say("ada", DecisionKind.REJECT, on=each.metadata.name)
        propose(cluster)
        agree(cluster)
        reached(cluster, P.PROMOTED)
        self.show()

    def wait(self) -> None:
        """Let another proposal wait."""
        now = self.cluster.clock.now()
        record = examples.a_proposal(
            artifact=OTHER,
            baseline=examples.ARTIFACT,
            environment=WORLD,
            created_at=now,
            expires_at=now + timedelta(days=3),
        )
        spec = proposal_spec(record, target="chat", gpu_model="MI300X", experiment="exp-1")
        self.cluster.put(PROPOSALS, examples.an_object("SwapProposal", "swp-9", spec))
        self.cluster.until(
            lambda: any(p.status.phase is P.AWAITING_APPROVAL for p in self.cluster.proposals())
        )
        self.show()

    def show(self) -> None:
        """Show what stands."""
        cluster = self.cluster
        cluster.operator.sync()
        ClusterMetrics(cluster.operator.world.caches, self.telemetry, clock=cluster.clock).show()


@contextmanager
def program(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Run the whole operator on an API server that is played."""
    file = folder / "operator.yaml"
    jobs = {"image": "lab", "namespace": "lab"}
    sidecar = {"image": "sidecar", "agentUrl": "https://localhost:8443"}
    file.write_text(yaml.safe_dump({"namespaces": [], "jobs": jobs, "sidecar": sidecar}))
    said = {"STATE_DIR": folder / "state", "AGENT_PORT": 0, "METRICS_PORT": 0}
    said |= {"ADDRESS": "127.0.0.1", "POD_NAME": "retuned-0", "POD_NAMESPACE": "retuned"}
    for name, value in said.items():
        patch.setenv(f"RETUNED_OPERATOR_{name}", str(value))
    account = test_program.ACCOUNT
    with FakeApi(namespaces=("default", "serving", "retuned", "lab")) as fake:
        groups = ("system:authenticated",)
        fake.access.add("operator", Identity(name=account, groups=groups))
        fake.access.bind(account, [*reviewing_rules(), *watching_rules()])
        fake.access.bind(account, experiment_rules(), namespace="lab")
        fake.access.bind(account, own_rules(), namespace="retuned")
        fake.make(TARGETS, examples.a_target())
        with test_program.running(fake, load_settings(file), []) as operator:
            yield operator


@pytest.fixture(scope="module")
def scraped(monitoring: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus after a short life of everything."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        machine = OneMachine(tmp_path_factory.mktemp("machine"))
        pod = OnePod(tmp_path_factory.mktemp("pod"))
        cluster = OneCluster()
        operator = stack.enter_context(program(tmp_path_factory.mktemp("operator"), patch))
        jobs: dict[str, tuple[int, dict[str, str]]] = {
            "retuned-program": (operator.health.port, {"namespace": "retuned", "pod": "o-0"})
        }
        shown_by: tuple[tuple[str, PrometheusTelemetry, dict[str, str]], ...] = (
            ("retuned", machine.telemetry, {}),
            ("retuned-sidecars", pod.telemetry, {"namespace": "serving", "pod": "chat-0"}),
            ("retuned-operator", cluster.telemetry, {"namespace": "retuned", "pod": "o-1"}),
        )
        for name, telemetry, labels in shown_by:
            port, stop = served(telemetry)
            stack.callback(stop)
            jobs[name] = (port, labels)
        folder = tmp_path_factory.mktemp("prometheus")
        prometheus = stack.enter_context(Prometheus(monitoring, folder, jobs))
        prometheus.scraped()  # counters stand at 0
        machine.drift()
        pod.swap(2)
        cluster.work()
        prometheus.scraped()
        machine.swap()
        machine.go_back()
        pod.swap(12)
        prometheus.scraped()
        cluster.wait()
        machine.stop()
        prometheus.until(
            lambda: prometheus.ask('retuned_target_ready{job="retuned-program"}'),
            "the operator shows what stands",
        )
        prometheus.scraped()
        yield prometheus


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.id)
def test_a_query_returns_data(scraped: Prometheus, query: Query) -> None:
    found = scraped.seen(query.asked())
    (silent,) = [name for name in SILENT if name in query.expr] or [""]
    if silent:
        assert scraped.seen(silent), "its series are there"
        assert scraped.seen(f"sum({silent})")[0]["value"][1] == "0", "it is silent no more"
        return
    unseen = any(name in query.expr for name in UNSEEN)
    assert bool(found) != unseen, query.asked()


def test_a_query_about_what_there_is_not_returns_nothing(scraped: Prometheus) -> None:
    assert scraped.seen('sum(retuned_proposals{phase="made-up"})') == []
    assert scraped.seen("retuned_made_up_total") == []


def test_every_alert_can_be_asked_and_those_about_this_run_fire(scraped: Prometheus) -> None:
    firing = {rule.name for rule in alerts() if scraped.seen(rule.expr)}
    assert firing >= MUST_FIRE, MUST_FIRE - firing
    assert not firing & MUST_NOT, firing & MUST_NOT


def test_who_is_told_of_a_swap_that_went_back_learns_which(scraped: Prometheus) -> None:
    rules = [each for each in alerts() if each.name == "RetunedSwapRolledBack"]
    (found,) = [each for rule in rules for each in scraped.seen(rule.expr)]
    assert found["metric"]["reason"] == "shadow-mismatch"
    assert found["metric"]["kernel"] == KERNEL
    assert found["metric"]["target"] == "demo"
    assert found["metric"]["proposal"]


def test_nothing_was_counted_that_the_catalogue_does_not_have(scraped: Prometheus) -> None:
    assert scraped.seen("sum(retuned_metrics_refused_total)")[0]["value"][1] == "0"
