"""A virtual cluster whose operator may make canary replicas: workloads, kubelets, boots."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import KERNEL
from tests.operators.controllers.server import Server
from tests.operators.controllers.server_pods import SERVER, WORLD, ServerPod
from tests.operators.controllers.test_live_proofs import NEW, ProvingAgent
from tests.operators.world import POLICY
from tests.sidecar.sidecar_world import CLEAN, PodWorld
from tests.stages.watch_proof.test_replicas import boot as window_of_boot

from retuned.api.agent import BootOrder, BootPhase, PodBoot, PodRef
from retuned.api.replicas import ReplicaProofStatus
from retuned.ports import LiveSteps, ObservedSteps, Swapper
from retuned.runtime_client.fake import FakeSwapper
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.main import Sidecar
from retuned.sidecar.store import PodStore
from retuned.stages.watch.proof import Arm, StepRecord
from retuned.store.keys import Ed25519Notary
from retuned_operator.controllers import objects
from retuned_operator.kube.resources import PODS, REPLICA_SETS, Obj
from retuned_operator.manifests.names import REPLICA_OF
from retuned_operator.manifests.sidecar import SIDECAR

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
TEMPLATE: Obj = {
    "metadata": {
        "labels": {"app": "chat", "pod-template-hash": "abc"},
        "annotations": {"retuned.dev/inject": "true"},
    },
    "spec": {
        "initContainers": [{"name": SIDECAR, "image": "sidecar"}],
        "containers": [{"name": "server", "image": "vllm"}],
        "nodeSelector": {"gpu": "mi300x"},
    },
}


def policy(**rule: Any) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(POLICY)
    del body["spec"]["windows"]
    proof = {"mode": "required", "longBlocks": 0, "whenNotSwitchable": "canary"}
    body["spec"]["liveProof"] = proof | rule
    return body


class CanaryCluster(Cluster):
    """A `Cluster` whose operator may make replicas.

    Its servers cannot be switched, or could be if the rule did not forbid it.
    """

    def __init__(
        self,
        *,
        effect: float = 0.0,
        pods: int = 2,
        server: Server | None = None,
        now: datetime = OPEN,
        **rule: Any,
    ) -> None:
        self.effect, self.chance = effect, random.Random(3)
        self.steps = "not-switchable" if rule.get("switching", True) else ""
        self.schedules: Callable[[Obj], bool] = lambda _: True
        """Whether there is room for a replica."""
        self.reports_boot: Callable[[PodBoot], PodBoot | None] = lambda said: said
        """What a sidecar reports of what it has measured."""
        self.most = 0
        """Most replicas at one time."""
        self.workload: Obj = {}
        super().__init__(now, pods=0, policy=policy(**rule), server=server)
        self.owners = self.api
        self.restart()
        for number in range(pods):
            self.start_pod(f"chat-{number}").steps = self.steps
        self.workload = self.put(
            REPLICA_SETS,
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": "chat-abc", "namespace": self.namespace},
                "spec": {
                    "replicas": pods,
                    "selector": {"matchLabels": {"app": "chat"}},
                    "template": TEMPLATE,
                },
            },
        )
        self.adopt()

    def adopt(self) -> None:
        """Let the pods be those of the workload, as its controller does it."""
        about = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
        ref = about | {"name": "chat-abc", "uid": self.workload["metadata"]["uid"]}
        for server in self.servers.values():
            self.change(PODS, server.name, {"metadata": {"ownerReferences": [ref]}})

    def retemplate(self, image: str) -> None:
        """Let somebody change the pod template."""
        containers = [{"name": "server", "image": image}]
        change = {"spec": {"template": {"spec": {"containers": containers}}}}
        self.change(REPLICA_SETS, "chat-abc", change)

    # --- replicas ---------------------------------------------------------------------------------

    def replica_pods(self) -> list[Obj]:
        return [body for body in self.all(PODS) if REPLICA_OF in objects.labels_of(body)]

    def kubelet(self) -> None:
        super().kubelet()
        pods = self.replica_pods()
        self.most = max(self.most, len(pods))
        there = {body["metadata"]["uid"] for body in self.all(PODS)}
        for uid in list(self.servers):
            if uid not in there:
                self.gone(uid)
        for body in pods:
            uid = body["metadata"]["uid"]
            if uid not in self.servers and self.schedules(body):
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.pod_is(body, ready)
                self.replicas.add(uid)
                self.servers[uid] = self.replica(body)

    def gone(self, uid: str) -> None:
        del self.servers[uid]

    def replica(self, body: Obj) -> ServerPod:
        """Return the sidecar of a replica; its server has a level of its own."""
        made = ServerPod(name=body["metadata"]["name"], uid=body["metadata"]["uid"])
        since, level = self.clock.now(), self.chance.lognormvariate(0.0, 0.004)
        made.steps = self.steps

        def boots(asked: BootOrder) -> PodBoot | None:
            age = self.clock.now() - since
            on = made.active == NEW
            done = age >= timedelta(seconds=asked.leave_out_s + asked.window_s)
            window = window_of_boot(
                made.name,
                1,
                Arm.ON if on else Arm.OFF,
                ratio=level * (1.0 + self.effect * on),
                environment=WORLD or "",
                began_s=since.timestamp(),
            )
            window = window.model_copy(update={"boot": f"{made.uid}/1"})
            return self.reports_boot(
                PodBoot(
                    proposal=asked.proposal,
                    definition=asked.definition,
                    replica=asked.replica,
                    phase=BootPhase.DONE if done else BootPhase.RECORDING,
                    window=window if done else None,
                )
            )

        made.boots = boots
        return made

    # --- shorthands -------------------------------------------------------------------------------

    def kept(self) -> ReplicaProofStatus:
        found = self.proposals()[0].status.replicas
        assert found is not None
        return found

    def turn(self, *, seconds: float = 300.0) -> None:
        super().turn(seconds=seconds)

    def serving(self) -> set[str | None]:
        """Return what the pods of the target run, replicas left out."""
        return {each.active for uid, each in self.servers.items() if uid not in self.replicas}


# --- with real sidecars ---------------------------------------------------------------------------


@dataclass
class BootSteps:
    """The steps of one replica's server, in a time of its own: looks take no time of the cluster.

    It is both `LiveSteps`, as far as a boot needs it, and `StepObserver`.
    """

    server: FakeSwapper
    level: float
    effect: float
    chance: random.Random
    why_not: str = ""
    """Why its steps have no labels."""
    instance: str = "i-1"
    looks: int = 0
    dies_at: int | None = None
    _now_s: float = 100.0
    _steps: list[StepRecord] = field(default_factory=list)

    def unavailable(self) -> str:
        return self.why_not

    def engine(self) -> str:
        return "vllm 1"

    def wait(self, seconds: float) -> None:
        self._now_s += seconds

    def observe(self, seconds: float) -> ObservedSteps:
        self.looks += 1
        if self.looks == self.dies_at:
            raise KeyboardInterrupt
        (slot,) = self.server.slots()
        end_s, found = self._now_s + seconds, list[StepRecord]()
        while self._now_s < end_s:
            decode = self.chance.randrange(1, 32)
            period_s = 0.5 * (1.0 + 0.02 * decode) * self.level
            period_s *= self.chance.lognormvariate(0.0, 0.01)
            period_s *= 1.0 + self.effect * (slot.active is not None)
            self._now_s += period_s
            found.append(
                StepRecord(
                    index=len(found),
                    arm=Arm.OFF,
                    prefill=0,
                    decode=decode,
                    context=256 * decode,
                    graph=None,
                    period_s=period_s,
                    busy_s=None,
                    host_s=None,
                    ended_s=self._now_s,
                )
            )
        return ObservedSteps(engine="vllm 1", steps=found, instance=self.instance)


class ReplicaPod(PodWorld):
    """A replica with a real sidecar over a server with simulated steps."""

    def __init__(self, folder: Path, cluster: RealCanaries, server: ServerPod) -> None:
        folder.mkdir(parents=True)
        self.server = FakeSwapper((KERNEL,), runs_on=SERVER.environment())
        super().__init__(folder)
        self.clock, self.notary = cluster.clock, cluster.notary
        ref = PodRef(namespace=cluster.namespace, name=server.name, uid=server.uid)
        self.operator = ProvingAgent(cluster, ref)  # type: ignore[arg-type,assignment]
        level = cluster.chance.lognormvariate(0.0, 0.004)
        self.steps = BootSteps(
            self.server, level, cluster.effect, cluster.chance, why_not=cluster.steps
        )
        self.start()

    def swaps(self, store: PodStore, artifacts: Artifacts, believed: PinnedKeys) -> Swapper:
        return self.server

    def start(self, *, configured: str = "") -> Sidecar:
        made = super().start(configured=configured)
        if hasattr(self, "steps"):
            live: LiveSteps = self.steps  # type: ignore[assignment]  # as far as a boot needs it
            self.sidecar = Sidecar(replace(made.ctx, live_steps=live, step_observer=self.steps))
        return self.sidecar

    def work(self) -> None:
        self.turn(0.0)
        if self.server.slots()[0].active is not None:
            self.server.counts[KERNEL] = dict(CLEAN)
        self.sidecar.prove(threading.Event())


class RealCanaries(CanaryCluster):
    """A `CanaryCluster` whose replicas have real sidecars."""

    def __init__(self, folder: Path, **rule: Any) -> None:
        self.folder = folder
        self.booted: dict[str, ReplicaPod] = {}
        self.notary = Ed25519Notary(folder / "keys")
        signer = PodWorld(folder / "signer")
        signer.notary = self.notary
        super().__init__(**rule)
        key = f"{self.namespace}/chat"
        self.files = signer.signed(NEW, name=KERNEL, target=key)

    def replica(self, body: Obj) -> ServerPod:
        made = super().replica(body)
        self.booted[made.uid] = ReplicaPod(self.folder / made.name, self, made)
        return made

    def gone(self, uid: str) -> None:
        super().gone(uid)
        pod = self.booted.pop(uid, None)
        if pod is not None:
            pod.ctx.store.close()

    def sidecars(self) -> None:
        real = {uid: self.servers.pop(uid) for uid in self.booted if uid in self.servers}
        super().sidecars()
        self.servers |= real
        for pod in list(self.booted.values()):
            pod.work()
