"""What a cluster spends and saves: windows of pods with a swap, results that came, ways back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.review.conftest import Looking

from retuned.api.agent import PodRef, ProfileReport
from retuned.contract import Solution
from retuned.stages.gate import LiveProof
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned.stages.watch import Hours
from retuned.store.memory import MemoryStore
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.ports import LiveShapes
from retuned_operator.kube.resources import EXPERIMENTS, PODS, PROPOSALS, TARGETS
from retuned_operator.pods import CachedFleet
from retuned_operator.savings import ClusterAccounts
from retuned_operator.schema import SwapProposal, TuningTarget, read
from retuned_operator.store.results import ResultFolder

SINCE = datetime(2026, 11, 2, 12, tzinfo=UTC)
POD = PodRecord(namespace="serving", name="chat-0", uid="uid-0", target="serving/chat")
WORLD, OTHER = examples.WORLD, "sha256:" + "5" * 64
KERNEL = str(examples.a_swap()["spec"]["kernel"])


class Kernels:
    """A catalog of one kernel, by the name of its launches."""

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        return None

    def recognise(
        self,
        kernel: str,
        dims: tuple[tuple[int, ...], ...],
        dtypes: tuple[str, ...],
        *,
        target: TuningTarget,
    ) -> tuple[str, dict[str, int]] | None:
        return (KERNEL, {"M": dims[0][0]}) if kernel == "mine" else None

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        return ()

    def live_shapes(self, *, target: TuningTarget) -> LiveShapes:
        return lambda stat: ()

    def is_live(self, definition: str, *, target: TuningTarget) -> bool:
        return False


class World:
    """A target, a swap in a pod, and the sums."""

    def __init__(self, fake: FakeApi, folder: Path) -> None:
        self.fake = fake
        self.store = MemoryStore()
        self.sums = ClusterAccounts(
            self.store, Looking(fake), kernels=Kernels(), results=ResultFolder(folder)
        )
        self.target = fake.make(TARGETS, examples.a_target())
        body = examples.a_swap(guard={"bounds": {"M": [1, 512]}})
        self.swap = fake.make(PROPOSALS, body, **self.status("Promoted"))

    def status(self, phase: str, **pod: Any) -> dict[str, Any]:
        told = {"name": "chat-0", "uid": "uid-0", "wants": "swap", "epoch": 1, "done": True}
        since = SINCE.isoformat()
        rollout = {"startedAt": since, "waveStartedAt": since, "lastSwapAt": since}
        return {"phase": phase, "rollout": rollout | {"pods": [told | {"since": since} | pod]}}

    def hear(
        self,
        *,
        after: timedelta,
        m: int = 256,
        pod: PodRecord = POD,
        counted: bool = True,
        traced: int = 0,
    ) -> None:
        start_ns = int((SINCE + after).timestamp() * 1e9)
        stats = [
            SignatureStat(
                signature=Signature(kernel=name, dims=((m, 64),)),
                launches=1,
                gpu_time_ns=int(3.6e12),
                median_ns=1,
            )
            for name in ("mine", "other")
        ]
        profile = WorkloadProfile(
            window_start_ns=start_ns,
            window_ns=10**12,
            observed_ns=10**12,
            stats=tuple(stats),
            counted=counted,
        )
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        said = ProfileReport(
            pod=ref, target=pod.target, id="w", profile=profile, gpus_traced=traced
        )
        self.sums.heard(pod, said)

    def set(self, phase: str, **pod: Any) -> None:
        self.swap = self.fake.set_status(PROPOSALS, self.swap, **self.status(phase, **pod))


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with FakeApi() as fake:
        yield World(fake, tmp_path)


def proven(verdict: str, effect: float | None, *, environment: str = WORLD) -> dict[str, Any]:
    """Return a live proof in a status."""
    reason = {"helps": "faster", "harms": "slower"}.get(verdict, "noise")
    rule = LiveProof().model_dump(mode="json", by_alias=True)
    entry = {
        "name": "chat-0",
        "uid": "uid-0",
        "epoch": 1,
        "environment": environment,
        "wave": 0,
        "swapped": 1,
        "since": SINCE.isoformat(),
        "at": SINCE.isoformat(),
        "rule": rule,
        "verdict": verdict,
        "reason": reason,
    }
    shown = (
        {} if effect is None else {"effect": effect, "low": effect - 0.01, "high": effect + 0.01}
    )
    return entry | shown


def show(world: World, *entries: dict[str, Any], environment: str | None = WORLD) -> None:
    """Let live proofs have ended, and all servers run on the same."""
    status = world.status("Promoted") | {"liveProofs": list(entries)}
    world.swap = world.fake.set_status(PROPOSALS, world.swap, **status)
    world.fake.set_status(TARGETS, world.target, environment=environment)


def test_what_a_live_proof_has_shown_is_saved_and_nothing_is_claimed(world: World) -> None:
    show(world, proven("helps", -0.05))
    world.hear(after=timedelta(hours=1))
    world.hear(after=timedelta(hours=2))
    world.fake.api().delete(PROPOSALS, world.swap["metadata"]["name"], namespace="serving")
    (account,) = world.sums.accounts()
    busy_h = 4.0  # of both kernels, in two windows
    assert account.saved_h.point == pytest.approx(busy_h * math.expm1(0.05))
    assert account.saved_h.lower == pytest.approx(busy_h * math.expm1(0.04))
    assert account.saved_h.upper == pytest.approx(busy_h * math.expm1(0.06))
    assert (account.claimed_h, account.proven, account.swaps) == (Hours(), 1, 1)


def test_a_sampled_rank_stands_for_all_gpus_also_in_what_was_shown(world: World) -> None:
    show(world, proven("helps", -0.05))
    world.hear(after=timedelta(hours=1), pod=replace(POD, gpus=8), counted=False, traced=2)
    (account,) = world.sums.accounts()
    assert account.saved_h.point == pytest.approx(4 * 2.0 * math.expm1(0.05))


def test_of_the_proofs_of_several_waves_the_least_gain_counts(world: World) -> None:
    show(world, proven("helps", -0.05), proven("helps", -0.02), proven("helps", -0.04))
    world.hear(after=timedelta(hours=1))
    (account,) = world.sums.accounts()
    assert account.saved_h.point == pytest.approx(2.0 * math.expm1(0.02))


@pytest.mark.parametrize(
    ("entry", "environment"),
    [
        (proven("too-little-traffic", -0.05), WORLD),
        (proven("not-concluded", None), WORLD),
        (proven("helps", -0.05, environment=OTHER), WORLD),
        (proven("helps", -0.05), OTHER),
        (proven("helps", -0.05, environment=""), None),
    ],
)
def test_what_no_proof_has_shown_in_this_environment_remains_a_claim(
    world: World, entry: dict[str, Any], environment: str | None
) -> None:
    show(world, entry, environment=environment)
    world.hear(after=timedelta(hours=1))
    (account,) = world.sums.accounts()
    assert (account.saved_h, account.proven) == (Hours(), 0)
    assert account.claimed_h.point > 0.0


def test_after_a_change_of_the_servers_the_hours_before_it_remain_saved(world: World) -> None:
    show(world, proven("helps", -0.05))
    world.hear(after=timedelta(hours=1))
    show(world, proven("helps", -0.05), environment=OTHER)
    world.hear(after=timedelta(hours=2))
    (account,) = world.sums.accounts()
    assert account.saved_h.point == pytest.approx(2.0 * math.expm1(0.05))
    assert account.claimed_h.point > 0.0
    assert (account.swaps, account.proven) == (1, 1)


def test_a_proven_swap_that_went_back_saved_nothing(world: World) -> None:
    show(world, proven("helps", -0.05))
    world.hear(after=timedelta(hours=1))
    world.set("RolledBack")
    world.sums.keep_up()
    (account,) = world.sums.accounts()
    assert (account.saved_h, account.claimed_h, account.taken_back) == (Hours(), Hours(), 1)


def saved(world: World) -> Sequence[object]:
    return [(a.month, a.target, a.claimed_h.point) for a in world.sums.accounts()]


def test_an_hour_of_a_swapped_kernel_saves_what_its_speedup_says(world: World) -> None:
    world.hear(after=timedelta(hours=1))
    world.hear(after=timedelta(hours=2))
    world.hear(after=timedelta(days=40))
    speedup = read(SwapProposal, world.swap).spec.speedup
    one = speedup.point - 1
    assert saved(world) == [
        ("2026-12", "serving/chat", pytest.approx(one)),
        ("2026-11", "serving/chat", pytest.approx(2 * one)),
    ]


@pytest.mark.parametrize(
    ("counted", "traced", "times"),
    [(False, 1, 8), (False, 2, 4), (False, 8, 1), (False, 16, 1), (False, 0, 1), (True, 1, 1)],
)
def test_a_rank_that_was_looked_at_stands_for_all_gpus_of_its_pod_unless_all_were_counted(
    world: World, counted: bool, traced: int, times: int
) -> None:
    pod = replace(POD, gpus=8)
    world.hear(after=timedelta(hours=1), pod=pod, counted=counted, traced=traced)
    one = read(SwapProposal, world.swap).spec.speedup.point - 1
    assert saved(world) == [("2026-11", "serving/chat", pytest.approx(times * one))]


def test_a_pod_has_the_gpus_that_it_requests_and_others_of_its_resources_are_none(
    world: World,
) -> None:
    for name, asked in (("chat-0", {"amd.com/gpu": "8", "cpu": "64"}), ("chat-1", {"cpu": "64"})):
        about = {"name": name, "namespace": "serving", "labels": {"app": "chat"}}
        containers = [{"name": "server", "resources": {"requests": asked, "limits": asked}}]
        world.fake.make(PODS, {"metadata": about, "spec": {"containers": containers}})
    fleet = CachedFleet(
        Looking(world.fake), artifact=lambda _: None, key=str, gpu_resources={"amd.com/gpu"}
    )
    found = [fleet.pod("serving", name) for name in ("chat-0", "chat-1")]
    assert [each and each.gpus for each in found] == [8, 1]


@pytest.mark.parametrize(
    "what", ["before", "outside", "another-pod", "not-done", "told-back", "spreading"]
)
def test_what_did_not_run_the_variant_counts_as_nothing(world: World, what: str) -> None:
    if what == "not-done":
        world.set("Promoted", done=False)
    elif what == "told-back":
        world.set("Promoted", wants="back")
    elif what == "spreading":
        world.set("Canary")
    other = PodRecord(namespace="serving", name="chat-1", uid="uid-1", target="serving/chat")
    world.hear(
        after=timedelta(hours=-1 if what == "before" else 1),
        m=1024 if what == "outside" else 256,
        pod=other if what == "another-pod" else POD,
    )
    assert saved(world) == []


def test_what_went_back_saved_nothing_even_once_its_proposal_is_gone(world: World) -> None:
    world.hear(after=timedelta(hours=1))
    world.set("RolledBack")
    world.sums.keep_up()
    name = world.swap["metadata"]["name"]
    world.fake.api().delete(PROPOSALS, name, namespace="serving")
    world.sums.keep_up()
    (account,) = world.sums.accounts()
    assert (account.taken_back, account.claimed_h.upper) == (1, 0.0)


def test_an_ended_experiment_is_kept_once(world: World) -> None:
    world.fake.make(EXPERIMENTS, examples.an_experiment(), phase="Failed")
    for _ in range(2):
        world.sums.keep_up()
    assert len(world.store.list("spending")) == 1
    assert world.sums.accounts() == (), "it left no results, so nothing is known of its time"
