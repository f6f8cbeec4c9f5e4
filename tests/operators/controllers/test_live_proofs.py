"""Live proofs in a cluster: the controllers, what pods report, and what they only say."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import KERNEL
from tests.operators.controllers.server_pods import SERVER, WORLD, ServerPod
from tests.operators.controllers.table_cluster import KEY, Agent
from tests.operators.controllers.test_swaps import active, agree, phase, propose, reached
from tests.operators.world import POLICY
from tests.sidecar.sidecar_world import CLEAN, PodWorld
from tests.stages.watch_proof.blocks import Run, slower
from tests.standalone.test_live_proof_loop import Counts, Live

from retuned.api.agent import MAX_PROOFS, LevelsState, PodProof, PodRef, ProofOrder, ProofPost
from retuned.api.proposal import LiveProofStatus
from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.node.live_proof import LIVE_PROOF, report_in
from retuned.ports import Swapper
from retuned.report.live_proof import account_lines
from retuned.runtime_client.fake import FakeSwapper
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.main import Sidecar
from retuned.sidecar.operator_api import take_bundle
from retuned.sidecar.store import PodStore
from retuned.stages.watch.proof import (
    Arm,
    ArmLaunches,
    KernelTime,
    PairKind,
    PairResult,
    Phase,
    ProofClaim,
    ProofReason,
    ProofSettings,
    Verdict,
    VoidReason,
    settings_of,
)
from retuned.stages.watch.proof.records import MAX_PAIRS, MOST_AXES, MOST_LENGTHS
from retuned.store.keys import Ed25519Notary
from retuned_operator.agent_api.artifacts import bundle_of, pieces
from retuned_operator.agent_api.requests import MAX_BYTES
from retuned_operator.kube.resources import PODS
from retuned_operator.schema import ProposalPhase as P

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
NEW = examples.ARTIFACT


def policy(**rule: Any) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(POLICY)
    del body["spec"]["windows"]
    body["spec"]["liveProof"] = {"mode": "required", "longBlocks": 0} | rule
    return body


@functools.cache
def _claim(rule: ProofSettings, by: float) -> ProofClaim:
    run = Run(rule)
    run.pilot()
    state = run.until_done(slower(by))
    report = state.report
    assert report is not None
    return ProofClaim(
        verdict=report.verdict,
        reason=report.reason,
        pairs=state.pairs,
        pilot_huge=state.pilot_huge,
        seconds=report.seconds,
    )


def claim(asked: ProofOrder, by: float) -> ProofClaim:
    """Return what an honest pod reports of a swap that changes step time by this ratio."""
    return _claim(settings_of(asked.rule), by)


def reports(
    by: float, lie: Callable[[ProofClaim], ProofClaim] = lambda true: true
) -> Callable[[ProofOrder], PodProof]:
    def proves(asked: ProofOrder) -> PodProof:
        return PodProof(
            order=asked.order,
            proposal=asked.proposal,
            definition=asked.definition,
            epoch=asked.epoch,
            phase=Phase.DONE,
            pairs=40,
            claim=lie(claim(asked, by)),
        )

    return proves


def able(cluster: Cluster, proves: Callable[[ProofOrder], PodProof | None]) -> None:
    for server in cluster.servers.values():
        server.steps, server.proves = "", proves


def begun(*, pods: int = 3, **rule: Any) -> Cluster:
    cluster = Cluster(OPEN, pods=pods, policy=policy(**rule))
    propose(cluster)
    agree(cluster)
    return cluster


def proofs(cluster: Cluster) -> tuple[LiveProofStatus, ...]:
    (proposal,) = cluster.proposals()
    return proposal.status.live_proofs


def test_required_holds_no_swap_where_pods_can_prove_it() -> None:
    cluster = begun()
    able(cluster, reports(-0.03))
    reached(cluster, P.PROMOTED)
    assert set(active(cluster)) == {NEW}
    first = proofs(cluster)[0]
    assert (first.verdict, first.reason, first.wave) == ("helps", "faster", 0)
    assert first.sentence.startswith("helps (faster): steps take 3.")
    assert first.low is not None
    assert first.effect is not None
    assert first.low < first.effect < 0.0
    assert first.pairs >= 4
    assert len({each.uid for each in proofs(cluster)}) == len(proofs(cluster)) > 1
    document = json.loads(cluster.ledger.proofs[0])
    assert len(document["reported"]["claim"]["pairs"]) > first.pairs
    assert (document["judged"]["verdict"], document["artifact"]) == ("helps", NEW)
    counted = cluster.telemetry.counters
    labels = frozenset({"verdict": "helps", "reason": "faster"}.items())
    assert counted["retuned_live_proof_verdicts_total", labels] == len(proofs(cluster))


@pytest.mark.parametrize("steps", [None, "several-servers"])
def test_required_names_the_server_that_cannot_and_its_reason(steps: str | None) -> None:
    cluster = begun()
    able(cluster, reports(-0.03))
    next(iter(cluster.servers.values())).steps = steps
    for _ in range(20):
        cluster.turn()
    (proposal,) = cluster.proposals()
    status = proposal.status
    assert (status.phase, status.reason) == (P.SCHEDULED, "live-proof-unavailable")
    assert status.detail == (f"no live proof is possible: chat-0: {steps or 'not-reported'}")
    assert set(active(cluster)) == {None}
    next(iter(cluster.servers.values())).steps = ""
    reached(cluster, P.PROMOTED)


def test_canary_replicas_are_refused_by_name() -> None:
    cluster = begun(whenNotSwitchable="canary")
    able(cluster, reports(-0.03))
    next(iter(cluster.servers.values())).steps = "not-switchable"
    for _ in range(20):
        cluster.turn()
    status = cluster.proposals()[0].status
    assert (status.phase, status.reason) == (P.SCHEDULED, "canary-replicas-unavailable")
    assert status.detail == "the operator starts no canary replicas: chat-0: not-switchable"
    assert set(active(cluster)) == {None}
    list(cluster.servers.values())[1].steps = "several-servers"
    cluster.turn()
    assert cluster.proposals()[0].status.reason == "live-proof-unavailable"


def test_a_server_that_cannot_be_switched_is_kept_unmeasured_under_keep() -> None:
    cluster = begun(whenNotSwitchable="keep")
    able(cluster, reports(-0.03))
    for server in cluster.servers.values():
        server.steps = "not-switchable"
    reached(cluster, P.PROMOTED)
    assert set(active(cluster)) == {NEW}
    assert proofs(cluster) == ()


SLO: dict[str, Any] = {"slo": {"maxQueue": 4}}


@pytest.mark.parametrize("levels", [LevelsState.ABSENT, LevelsState.UNREADABLE])
def test_required_holds_a_swap_while_a_server_shows_no_service_levels(levels: LevelsState) -> None:
    cluster = begun(**SLO)
    able(cluster, reports(-0.03))
    for server in cluster.servers.values():
        server.levels = LevelsState.READ
    first = next(iter(cluster.servers.values()))
    first.levels = levels
    for _ in range(20):
        cluster.turn()
    status = cluster.proposals()[0].status
    assert (status.phase, status.reason) == (P.SCHEDULED, "live-proof-unavailable")
    assert status.detail == "no live proof is possible: chat-0: no-service-levels"
    assert set(active(cluster)) == {None}
    first.levels = LevelsState.READ
    reached(cluster, P.PROMOTED)


def test_a_swap_that_harms_in_one_pod_goes_back_everywhere() -> None:
    cluster = begun()
    able(cluster, reports(-0.03))
    reached(cluster, P.PROMOTING)
    able(cluster, reports(0.03))
    reached(cluster, P.ROLLED_BACK)
    assert set(active(cluster)) == {None}
    (quarantined,) = cluster.target().status.quarantine
    assert quarantined.reason == "live-proof-slower"
    assert proofs(cluster)[-1].verdict == "harms"


@pytest.mark.parametrize(("mode", "end"), [("required", P.ROLLED_BACK), ("observe", P.PROMOTED)])
def test_no_effect_follows_the_policy(mode: str, end: P) -> None:
    cluster = begun(mode=mode)
    able(cluster, reports(0.0))
    cluster.until(lambda: phase(cluster) in (P.ROLLED_BACK, P.PROMOTED))
    assert phase(cluster) is end
    assert proofs(cluster)[0].verdict == "no-measurable-effect"
    assert not cluster.target().status.quarantine


def lie_about_the_verdict(true: ProofClaim) -> ProofClaim:
    return true.model_copy(update={"verdict": Verdict.HELPS, "reason": ProofReason.FASTER})


def lie_about_the_time(true: ProofClaim) -> ProofClaim:
    few = tuple(pair for pair in true.pairs if pair.sham)
    update = {"verdict": Verdict.TOO_LITTLE_TRAFFIC, "reason": ProofReason.FEW_STEPS}
    return true.model_copy(update=update | {"pairs": few})


def lie_about_service_levels(true: ProofClaim) -> ProofClaim:
    few = tuple(pair for pair in true.pairs if pair.sham)
    number, kind = few[-1].number, PairKind.SHORT
    cut = [
        PairResult(number=number + n, kind=kind, first=Arm.ON, void=VoidReason.ABANDONED)
        for n in (1, 2, 3)
    ]
    update = {"verdict": Verdict.TOO_LITTLE_TRAFFIC, "reason": ProofReason.SLO_PRESSURE}
    return true.model_copy(update=update | {"pairs": (*few, *cut)})


@pytest.mark.parametrize(
    "lie", [lie_about_the_verdict, lie_about_the_time, lie_about_service_levels]
)
def test_a_pod_that_lies_about_its_verdict_keeps_no_swap(
    lie: Callable[[ProofClaim], ProofClaim],
) -> None:
    cluster = begun(onTooLittleTraffic="keep")
    able(cluster, reports(0.03, lie))
    reached(cluster, P.ROLLED_BACK)
    (entry,) = proofs(cluster)
    assert (entry.verdict, entry.reason) == ("not-concluded", "contradicted")
    assert "contradicted" in entry.sentence
    assert set(active(cluster)) == {None}
    assert not cluster.target().status.quarantine, "nothing is known of the artifact"
    assert json.loads(cluster.ledger.proofs[0])["judged"]["reason"] == "contradicted"


KERNELS = (
    KernelTime(lengths=(512,), launches=8.0, off_s=2.4e-3, on_s=1.2e-3),
    KernelTime(lengths=(64,), launches=1.0, off_s=3.0e-5, on_s=2.0e-5),
)
FALSE = (KernelTime(lengths=(1,), launches=1e15, off_s=1e-9, on_s=3600.0),)


def with_kernels(kernels: tuple[KernelTime, ...]) -> Callable[[ProofClaim], ProofClaim]:
    return lambda true: true.model_copy(update={"kernels": kernels})


def has_ended(cluster: Cluster) -> bool:
    return phase(cluster) in (P.ROLLED_BACK, P.PROMOTED)


@pytest.mark.parametrize("by", [-0.03, 0.0, 0.03])
@pytest.mark.parametrize("kernels", [KERNELS, FALSE], ids=["true", "false"])
def test_times_of_the_kernel_in_place_are_stored_and_decide_nothing(
    by: float, kernels: tuple[KernelTime, ...]
) -> None:
    found = []
    for told in ((), kernels):
        cluster = begun(pods=1)
        able(cluster, reports(by, with_kernels(told)))
        ended = functools.partial(has_ended, cluster)
        cluster.until(ended)
        (entry,) = proofs(cluster)
        assert entry.account is not None
        assert entry.account.account().kernels == told
        assert ("in place" in dict(account_lines(entry.account.account()))) is bool(told)
        assert json.loads(cluster.ledger.proofs[0])["judged"]["account"]["step_seconds"] is not None
        own = {"account", "evidence", "uid", "name"}
        found.append((phase(cluster), entry.model_dump(exclude=own), active(cluster)))
    assert found[0] == found[1]


def test_a_verdict_that_pairs_contradict_has_no_account() -> None:
    cluster = begun(pods=1)
    able(cluster, reports(0.03, lambda true: lie_about_the_verdict(with_kernels(KERNELS)(true))))
    reached(cluster, P.ROLLED_BACK)
    (entry,) = proofs(cluster)
    assert (entry.reason, entry.account) == ("contradicted", None)


def test_a_report_of_another_order_or_pod_counts_for_nothing() -> None:
    cluster = begun(pods=1)

    def of_another(asked: ProofOrder) -> PodProof:
        return reports(-0.03)(asked).model_copy(update={"epoch": asked.epoch + 1})

    able(cluster, of_another)
    reached(cluster, P.PROVING)
    for _ in range(10):
        cluster.turn()
    assert phase(cluster) is P.PROVING
    assert proofs(cluster)[0].verdict == ""


def test_an_operator_that_begins_again_waits_for_the_same_pod() -> None:
    cluster = begun()
    able(cluster, lambda _: None)
    reached(cluster, P.PROVING)
    cluster.until(lambda: bool(proofs(cluster)))
    before = proofs(cluster)
    cluster.restart()
    for _ in range(6):
        cluster.turn()
    assert phase(cluster) is P.PROVING
    assert proofs(cluster) == before
    able(cluster, reports(-0.03))
    reached(cluster, P.PROMOTED)
    assert proofs(cluster)[0].uid == before[0].uid


def test_a_sidecar_that_disappears_is_decided_by_the_longest_duration() -> None:
    cluster = begun(maxDuration="10m")
    able(cluster, lambda _: None)
    reached(cluster, P.PROVING)
    cluster.until(lambda: bool(proofs(cluster)))
    cluster.servers[proofs(cluster)[0].uid].says = "silent"
    since = cluster.clock.now()
    cluster.until(lambda: phase(cluster) not in (P.PROVING, P.PAUSED))
    assert timedelta(minutes=10) < cluster.clock.now() - since < timedelta(minutes=20)
    assert phase(cluster).is_going_back
    assert proofs(cluster)[0].reason == "interrupted"


def test_evidence_that_cannot_be_kept_now_delays_the_verdict() -> None:
    cluster = begun()
    able(cluster, reports(-0.03))
    kept = cluster.ledger.keep_proof

    def full(document: bytes) -> Digest:
        raise TemporaryError("the disk is full", delay_s=1.0)

    cluster.ledger.keep_proof = full  # type: ignore[method-assign]
    reached(cluster, P.PROVING)
    for _ in range(10):
        cluster.turn()
    assert proofs(cluster)[0].verdict == ""
    cluster.ledger.keep_proof = kept  # type: ignore[method-assign]
    reached(cluster, P.PROMOTED)
    assert proofs(cluster)[0].evidence is not None


def test_the_largest_report_fits_into_a_request() -> None:
    pair = _claim(ProofSettings(long_blocks=0), -0.03).pairs[-1]
    busy = pair.on.model_copy(update={"busy_s": 1.2345678901234567, "host_s": 1.2345678901234567})
    full = pair.model_copy(update={"d_busy": 0.12345678901234567, "on": busy, "off": busy})
    pairs = tuple(full.model_copy(update={"number": n}) for n in range(MAX_PAIRS))
    longest = KernelTime(
        lengths=(1 << 53,) * MOST_AXES, launches=1 / 3, off_s=1.2345678901234567, on_s=1 / 3
    )
    others = [
        longest.model_copy(update={"lengths": (n, *longest.lengths[1:])})
        for n in range(MOST_LENGTHS)
    ]
    whole = ProofClaim(
        verdict=Verdict.HELPS, reason=ProofReason.FASTER, pairs=pairs, kernels=tuple(others)
    )
    kernels_bytes = sum(len(each.model_dump_json()) for each in others) * 3 * MAX_PROOFS
    assert len(whole.model_dump_json()) + kernels_bytes < MAX_BYTES[ProofPost]


# --- with real sidecars ---------------------------------------------------------------------------


class ProvingPod(PodWorld):
    """A pod with a real sidecar over a server with simulated steps."""

    def __init__(self, folder: Path, cluster: ProvingCluster, server: ServerPod) -> None:
        folder.mkdir(parents=True)
        self.server = FakeSwapper((KERNEL,), runs_on=SERVER.environment())
        super().__init__(folder)
        self.clock, self.notary = cluster.clock, cluster.notary
        ref = PodRef(namespace=cluster.namespace, name=server.name, uid=server.uid)
        self.operator = ProvingAgent(cluster, ref)  # type: ignore[arg-type,assignment]  # its own
        self.live = Live(self)  # type: ignore[arg-type]  # it has a clock and a server
        self.counts = Counts(self.live, lambda _: False)
        self.start()

    def swaps(self, store: PodStore, artifacts: Artifacts, believed: PinnedKeys) -> Swapper:
        return self.server

    def start(self, *, configured: str = "") -> Sidecar:
        made = super().start(configured=configured)
        if hasattr(self, "live"):
            self.sidecar = Sidecar(
                replace(made.ctx, live_steps=self.live, service_counts=self.counts)
            )
        return self.sidecar

    def work(self) -> None:
        self.turn(0.0)
        if self.server.slots()[0].active is not None:
            self.server.counts[KERNEL] = dict(CLEAN)
        self.sidecar.prove(threading.Event())


class ProvingAgent(Agent):
    """The agent API, with one artifact that every pod may have."""

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        files = self.cluster.files  # type: ignore[attr-defined]  # of a `ProvingCluster`
        take_bundle(digest, pieces(bundle_of(digest, files), files), folder=folder)


class ProvingCluster(Cluster):
    """A `Cluster` with real sidecars."""

    def __init__(self, folder: Path, **rule: Any) -> None:
        self.folder, self.pods = folder, {}
        self.notary = Ed25519Notary(folder / "keys")
        super().__init__(OPEN, pods=0, policy=policy(**rule))
        for number in range(2):
            server = self.start_pod(f"chat-{number}")
            self.pods[server.name] = ProvingPod(folder / server.name, self, server)
        first = self.pods["chat-0"]
        self.files = first.signed(NEW, name=KERNEL, target=KEY)

    def sidecars(self) -> None:
        for pod in self.pods.values():
            pod.work()

    def stop_pod(self, name: str) -> None:
        """Let a pod go."""
        pod = self.pods.pop(name)
        del self.servers[pod.operator.pod.uid]
        self.remove(PODS, name)

    def serving(self) -> set[str | None]:
        """Return what the launches of all servers run."""
        slots = [pod.server.slots()[0] for pod in self.pods.values()]
        return {None if slot.bypassed else slot.active for slot in slots}


def test_real_sidecars_prove_a_swap_that_helps(tmp_path: Path) -> None:
    cluster = ProvingCluster(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = -0.04
    propose(cluster)
    agree(cluster)
    reached(cluster, P.PROMOTED)
    cluster.turn()
    cluster.turn()
    assert cluster.serving() == {NEW}
    assert [each.verdict for each in proofs(cluster)] == ["helps", "helps"]
    assert {each.environment for each in proofs(cluster)} == {WORLD}


def test_the_kernel_in_place_of_a_pod_is_shown_as_its_node_would_show_it(tmp_path: Path) -> None:
    cluster = ProvingCluster(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = -0.04
        pod.live.timed = [
            ArmLaunches(arm=arm, lengths=(4,), launches=900, times_s=(seconds,) * 20)
            for arm, seconds in ((Arm.OFF, 2e-3), (Arm.ON, 1e-3))
        ]
    propose(cluster)
    agree(cluster)
    reached(cluster, P.PROMOTED)
    cluster.restart()
    cluster.turn()
    first = proofs(cluster)[0]
    assert first.account is not None
    (stored,) = cluster.pods[first.name].ctx.store.list(LIVE_PROOF)
    known = report_in(stored)
    assert known is not None
    lines = account_lines(first.account.account())
    assert lines == account_lines(known.account)
    assert [name for name, _ in lines] == ["per step", "in place"]
    assert "at 4: 2,000 us without the swap, 1,000 us with it (2.00x)" in lines[1][1]
    (kernel,) = json.loads(cluster.ledger.proofs[0])["reported"]["claim"]["kernels"]
    assert (kernel["lengths"], kernel["off_s"], kernel["on_s"]) == ([4], 2e-3, 1e-3)


def test_real_sidecars_take_back_a_swap_that_harms(tmp_path: Path) -> None:
    cluster = ProvingCluster(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = 0.03
    propose(cluster)
    agree(cluster)
    reached(cluster, P.ROLLED_BACK)
    assert cluster.serving() == {None}
    assert cluster.target().status.quarantine[0].reason == "live-proof-slower"


def test_a_sidecar_and_an_operator_that_are_killed_in_the_middle_continue(tmp_path: Path) -> None:
    cluster = ProvingCluster(tmp_path)
    for pod in cluster.pods.values():
        pod.live.effect = -0.04
    first = cluster.pods["chat-0"]
    first.live.dies_at = 150
    propose(cluster)
    agree(cluster)
    with pytest.raises(KeyboardInterrupt):
        reached(cluster, P.PROMOTED)
    assert phase(cluster) is P.PROVING
    first.start()
    cluster.restart()
    reached(cluster, P.PROMOTED)
    voids = [
        each["void"] for each in json.loads(cluster.ledger.proofs[0])["reported"]["claim"]["pairs"]
    ]
    assert voids.count("abandoned") == 1
    assert cluster.serving() == {NEW}


def test_real_sidecars_whose_service_levels_are_not_met_take_a_swap_back(tmp_path: Path) -> None:
    cluster = ProvingCluster(tmp_path, **SLO)
    for pod in cluster.pods.values():
        pod.live.effect = -0.04
        pod.counts.busy = lambda at_s: at_s % 72.0 > 69.0
    propose(cluster)
    agree(cluster)
    reached(cluster, P.ROLLED_BACK)
    (entry,) = proofs(cluster)
    assert (entry.verdict, entry.reason) == ("too-little-traffic", "slo-pressure")
    assert cluster.serving() == {None}
    assert not cluster.target().status.quarantine, "load says nothing of the swap"
