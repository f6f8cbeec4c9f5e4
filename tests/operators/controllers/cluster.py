"""A whole cluster in one process and in virtual time: API server, Jobs, pods, sidecars, people.

The API server is a `Server`: the fake one without HTTP, where nothing else is said, or a real one.
An operator can die at any write, before or after it; the next one knows what the API server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import yaml
from tests.fakeapi.copying import copied
from tests.operators import examples
from tests.operators.controllers.memory import WIN, FakeLedger, FakeSignals
from tests.operators.controllers.memory_server import MemoryServer
from tests.operators.controllers.one_operator import Operator
from tests.operators.controllers.server import Faulty, Server, ended
from tests.operators.controllers.server_pods import WORLD, ServerPod
from tests.operators.world import GROUPS, POLICY

from retuned.api.agent import AlarmOrder, BootOrder, OverheadOrder, ProofOrder
from retuned.clock import FakeClock
from retuned.control import ResultFact
from retuned.control.attributions import alarm_orders
from retuned.control.canary import boot_order
from retuned.control.own_overhead import overhead_order
from retuned.control.sentinels import all_orders
from retuned.ports import Spans
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.swap import SwapOrder
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.agent_api import Receipt, desired_orders
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.job_requests import EVOLVE
from retuned_operator.controllers.ports import Owners, Tunables
from retuned_operator.kube.resources import (
    DECISIONS,
    EVENTS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)
from retuned_operator.manifests import JobSettings
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.schema import JobRole, KernelExperiment, SwapProposal, TuningTarget, read
from retuned_operator.store.tunables import PodTunables


class Cluster:
    """Everything but the operator."""

    def __init__(
        self,
        now: datetime,
        *,
        pods: int = 3,
        jobs: JobSettings | None = None,
        spans: Spans | None = None,
        server: Server | None = None,
        policy: Obj | None = None,
    ) -> None:
        self.spans = spans
        self.clock = FakeClock(now)
        self.server = server or MemoryServer()
        self.namespace = self.server.namespace
        self.api = Faulty(self.server.writes)
        self.ledger = FakeLedger()
        self.posts = PodTunables()
        self.tunables: Tunables = self.posts
        self.signals = FakeSignals()
        self.telemetry = FakeTelemetry()
        self.jobs = jobs or JobSettings(image="lab", gpu_models={"MI300X": {"model": "MI300X"}})
        self.servers: dict[str, ServerPod] = {}
        self.replicas: set[str] = set()
        """Uids of canary replicas."""
        self.owners: Owners | None = None
        """Workloads of server pods; None makes no canary replicas."""
        self.skew = timedelta(0)
        self.full = False
        """Whether production holds every accelerator, so that pods wait for one."""
        self.wins = True
        """Whether searches find anything."""
        endpoint = self.jobs.endpoint
        self.generators: tuple[str, ...] = ("search", EVOLVE) if endpoint else ("search",)
        self._count = 0
        self.put(TARGETS, examples.a_target())
        body = policy or yaml.safe_load(POLICY)
        self.put(POLICIES, body | {"metadata": {"name": "prod", "namespace": "serving"}})
        for n in range(pods):
            self.start_pod(f"chat-{n}")
        self.operator = Operator(self)

    # --- the API server as people use it ----------------------------------------------------------

    def put(self, resource: Resource, body: Obj) -> Obj:
        """Make an object as somebody else than the operator."""
        with self.virtual_time():
            return self.server.put(resource, self._asked(body))

    def change(self, resource: Resource, name: str, change: Obj, *, namespace: str | None = None,
               subresource: str = "") -> Obj:  # fmt: skip
        """Change an object as somebody else than the operator."""
        namespace = self.namespace if namespace is None else namespace
        with self.virtual_time():
            return self.server.change(
                resource, name, change, namespace=namespace, subresource=subresource
            )

    def remove(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        """Delete an object as somebody else than the operator."""
        namespace = self.namespace if namespace is None else namespace
        with self.virtual_time():
            self.server.remove(resource, name, namespace=namespace)

    def _asked(self, body: Obj) -> Obj:
        """Return an example as people would write it, in the namespace of the servers."""
        metadata = {
            key: value
            for key, value in body["metadata"].items()
            if key in ("name", "namespace", "labels", "ownerReferences", "annotations")
        }
        if metadata.get("namespace") == "serving":
            metadata["namespace"] = self.namespace
        body = {key: value for key, value in body.items() if key != "status"}
        return copied(body | {"metadata": metadata})

    def all(self, resource: Resource) -> list[Obj]:
        """Return every object of a kind."""
        return self.server.all(resource)

    def proposals(self) -> list[SwapProposal]:
        """Return every proposal, in the order of names."""
        return [read(SwapProposal, body) for body in self.all(PROPOSALS)]

    def experiments(self) -> list[KernelExperiment]:
        """Return every experiment, in the order of names."""
        return [read(KernelExperiment, body) for body in self.all(EXPERIMENTS)]

    def events(self, reason: str) -> list[str]:
        """Return the notes of the Events with a reason, oldest first."""
        found = [body for body in self.all(EVENTS) if body["reason"] == reason]
        return [body["note"] for body in sorted(found, key=lambda each: each["eventTime"])]

    def target(self) -> TuningTarget:
        """Return the target."""
        return read(TuningTarget, self.all(TARGETS)[0])

    def virtual_time(self) -> AbstractContextManager[object]:
        """Let the API server's clock be the virtual one, if it can be set."""
        return self.server.at(self.clock.now() + self.skew)

    # --- pods -------------------------------------------------------------------------------------

    def start_pod(self, name: str) -> ServerPod:
        """Start a server pod with a sidecar."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": "chat"}},
            "spec": {
                "initContainers": [{"name": SIDECAR, "image": "sidecar"}],
                "containers": [{"name": "server", "image": "vllm"}],
            },
        }
        made = self.put(PODS, body)
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.change(PODS, name, {"status": ready}, subresource="status")
        server = ServerPod(name=name, uid=made["metadata"]["uid"])
        self.servers[server.uid] = server
        return server

    def sidecars(self) -> None:
        """Let every sidecar ask for its orders, carry them out and tell how its server stands."""
        for server in self.servers.values():
            if server.says == "silent":
                continue
            server.carry_out(self.orders_of(server))
            server.asked = self.proofs_of(server)
            server.overhead = self.overhead_of(server)
            server.asked_boot = self.boot_of(server)
            self.tell(server)

    def orders_of(self, server: ServerPod) -> Sequence[SwapOrder]:
        """Return what the operator says that a pod is to have; nothing where no target is."""
        if not self.all(TARGETS):
            return ()
        return desired_orders(
            server.name, server.uid, target=self.target(), proposals=self.proposals()
        )

    def proofs_of(self, server: ServerPod) -> Sequence[ProofOrder]:
        """Return what the operator asks a pod to prove."""
        return all_orders(server.uid, self.proposals())

    def alarms_of(self, server: ServerPod) -> Sequence[AlarmOrder]:
        """Return the swaps that a pod may try off."""
        return alarm_orders(server.uid, self.proposals())

    def overhead_of(self, server: ServerPod) -> OverheadOrder | None:
        """Return what the operator asks a pod about Retuned's own cost; nothing without target."""
        if not self.all(TARGETS):
            return None
        return overhead_order(server.uid, self.target().status.own_overhead)

    def boot_of(self, server: ServerPod) -> BootOrder | None:
        """Return what the operator asks a canary replica to measure."""
        if server.uid not in self.replicas or not self.all(TARGETS):
            return None
        return boot_order(server.uid, self.proposals(), target=self.target())

    def record_of(self, name: str, uid: str) -> PodRecord:
        """Return a pod as the agent API knows it."""
        return PodRecord(
            namespace=self.namespace,
            name=name,
            uid=uid,
            target=f"{self.namespace}/chat",
            replica=uid in self.replicas,
        )

    def tell(self, server: ServerPod) -> None:
        """Let one sidecar tell how its server stands."""
        key = f"{self.namespace}/chat"
        receipt = Receipt(pod=self.record_of(server.name, server.uid), at=self.clock.now())
        for said in server.says_now(self.namespace, target=key, at=self.clock.now() + self.skew):
            self.operator.reports.take(receipt, said)

    # --- Jobs -------------------------------------------------------------------------------------

    def kubelet(self) -> None:
        """Let Jobs that were let go have a pod that runs, where there is room."""
        with self.virtual_time():
            self.server.run_pods(full=self.full)

    def pod_is(self, pod: Obj, status: Obj) -> None:
        """Let a pod be in some state."""
        place = pod["metadata"]
        self.change(
            PODS,
            place["name"],
            {"status": status},
            namespace=place["namespace"],
            subresource="status",
        )

    def work(self) -> None:
        """Let Jobs that were let go run to their end and leave what they found."""
        for body in self.all(JOBS):
            metadata, spec = body["metadata"], body["spec"]
            if spec["suspend"] or ended(body):
                continue
            role, name = metadata["labels"]["retuned.dev/role"], metadata["name"]
            verified, searched = role == JobRole.VERIFY, role == JobRole.SEARCH
            self.ledger.found.append(
                ResultFact(
                    job=name,
                    pod_uid=f"pod-{name}",
                    at=self.clock.now(),
                    tried=9,
                    correct=5,
                    finalists=2 if self.wins and searched else 0,
                    winner=examples.ARTIFACT if verified else None,
                    speedup=WIN if verified else None,
                )
            )
            self.finish(name, namespace=metadata["namespace"])

    def finish(self, name: str, *, namespace: str | None = None, type: str = "Complete") -> None:
        """Let a Job end."""
        with self.virtual_time():
            self.server.end_job(name, namespace=namespace or self.namespace, type=type)

    # --- people -----------------------------------------------------------------------------------

    def experiment(self, name: str = "exp-1") -> None:
        """Ask for an experiment."""
        body = examples.an_experiment(environment=WORLD)
        body["metadata"]["name"] = name
        self.put(EXPERIMENTS, body)

    def say(self, user: str, kind: DecisionKind = DecisionKind.APPROVE, *, on: str = "") -> None:
        """Let a person say something about a proposal, as they see it now."""
        proposal = next(p for p in self.proposals() if on in ("", p.metadata.name))
        gate = proposal.status.gate
        assert gate is not None
        self._count += 1
        spec = {
            "proposalRef": {"name": proposal.metadata.name, "uid": proposal.metadata.uid},
            "digest": proposal.spec.artifact.digest,
            "decision": str(kind),
            "user": user,
            "groups": list(GROUPS.get(user, ())),
            "comment": "because",
            "policyGeneration": gate.policy_generation,
            "policyDigest": gate.policy_digest,
        }
        body = self._asked(examples.an_object("SwapDecision", f"swd-{self._count}", spec))
        with self.virtual_time():
            self.server.say(DECISIONS, body, user=user, groups=GROUPS.get(user, ()))

    def freeze(self, policy: StopPolicy = StopPolicy.HOLD, name: str = "stop") -> None:
        """Put up a stop sign."""
        body = examples.a_freeze(stopPolicy=str(policy))
        body["metadata"]["name"] = name
        self.put(FREEZES, body)

    # --- time -------------------------------------------------------------------------------------

    def turn(self, *, seconds: float = 30.0) -> None:
        """Let everybody be at work once, and time pass."""
        self.sidecars()
        self.kubelet()
        self.work()
        with self.virtual_time():
            self.operator.look()
        self.clock.advance(seconds)

    def until(self, reached: Callable[[], bool], *, turns: int = 400) -> None:
        """Let time pass until something is so."""
        for _ in range(turns):
            if reached():
                return
            self.turn()
        raise AssertionError(f"not reached: {self.standing()}")

    def standing(self) -> str:
        """Say how things stand, for who wonders why something is not so."""
        trials = [f"{e.status.phase} ({e.status.reason})" for e in self.experiments()]
        swaps = [f"{p.status.phase} ({p.status.reason})" for p in self.proposals()]
        return f"{trials} {swaps} {self.operator.errors[-5:]}"

    def restart(self) -> None:
        """Begin with an operator that knows nothing."""
        self.operator = Operator(self)
