"""A cluster whose servers are real processes with a tunable, each with a real sidecar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from tests.operators import table_wins
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server_pods import ServerPod
from tests.operators.world import POLICY
from tests.sidecar.sidecar_world import PodWorld
from tests.standalone.tunable_world import SIZE, Server

from retuned.api.agent import (
    VERSION,
    Ack,
    Hello,
    OrderDone,
    Orders,
    PodRef,
    Report,
    Welcome,
    as_orders,
)
from retuned.contract import Digest, digest_of
from retuned.errors import Refused
from retuned.ports import Swapper
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.tunables import RuntimeTunables, TunableReport
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.operator_api import take_bundle
from retuned.sidecar.sockets import PodSocket
from retuned.sidecar.store import PodStore
from retuned.sidecar.tables import OrderedTables
from retuned.standalone.tunables.records import server_side
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned.tunables.tune import ClassResult, rules_of
from retuned_operator.agent_api import Receipt
from retuned_operator.agent_api.artifacts import bundle_of, pieces
from retuned_operator.controllers.cluster_view import baseline
from retuned_operator.controllers.ports import LaunchedSizes, LaunchedTunable, NoTunables
from retuned_operator.kube.resources import EXPERIMENTS, Obj
from retuned_operator.schema import SwapProposal, write
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.results import ResultFolder

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
KEY = "serving/chat"


class Agent:
    """The agent API of the cluster's operator, without HTTP; the `Operator` of one sidecar."""

    def __init__(self, cluster: TableCluster, pod: PodRef) -> None:
        self.cluster, self.pod = cluster, pod
        self.away = False

    def hello(self, hello: Hello) -> Welcome:
        self._take(hello)
        key = self.cluster.notary.public_hex()
        return Welcome(version=VERSION, at=self.cluster.clock.now(), target=KEY, key=key)

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        heard = self.cluster.operator.reports.of(self.pod.uid)
        self._take(report)
        return Ack(unheard=heard is None or heard.hello is None)

    def orders(self, *, after: int, wait_s: float) -> Orders:
        server = self.cluster.servers[self.pod.uid]
        cluster = self.cluster
        return as_orders(
            cluster.orders_of(server),
            cluster.proofs_of(server),
            cluster.boot_of(server),
            alarms=cluster.alarms_of(server),
            overhead=cluster.overhead_of(server),
        )

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        self._take(said)

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        orders = self.cluster.orders_of(self.cluster.servers[self.pod.uid])
        named = {each for order in orders for each in (order.artifact, order.previous)}
        files = self.cluster.stored.artifact(digest) if digest in named else None
        if files is None:
            error = Refused(digest)
            error.code = "artifact-unknown"
            raise error
        take_bundle(digest, pieces(bundle_of(digest, files), files), folder=folder)

    def _take(self, said: Hello | Report | OrderDone) -> None:
        pod = self.cluster.record_of(self.pod.name, self.pod.uid)
        receipt = Receipt(pod=pod, at=self.cluster.clock.now())
        self.cluster.operator.reports.take(receipt, said)


class StoryPod(PodWorld):
    """One pod: a server process, and its sidecar over the server's real sockets."""

    def __init__(self, folder: Path, cluster: TableCluster, ref: PodRef) -> None:
        self.sockets = folder / "sockets"
        for name in ("sockets", "package"):
            (folder / name).mkdir(parents=True, mode=0o700)
        super().__init__(folder)
        self.clock = cluster.clock
        self.operator = Agent(cluster, ref)  # type: ignore[assignment]  # the cluster's own
        self.start()
        self.server = Server.start(folder, RETUNED_TRUST="pin")

    def swaps(self, store: PodStore, artifacts: Artifacts, believed: PinnedKeys) -> Swapper:
        server = PodSocket(self.sockets, key=believed.shown_to_servers, timeout_s=60.0)
        return ChangeSwapper(
            server,
            self.sockets,
            changes=OrderedTables(store, artifacts),
            term=server.term,
            key=believed.shown_to_servers,
            server=server,
        )

    def serve(self) -> int:
        """Let traffic go by; return the block that the last launch ran."""
        return self.server.launch(2)

    def began_again(self, **environment: str) -> None:
        """Kill the server and start it, perhaps as another version."""
        self.server.kill()
        self.server = Server.start(self.folder, RETUNED_TRUST="pin", **environment)

    def close(self) -> None:
        if self.server.process.poll() is None:
            self.server.stop()
        self.ctx.store.close()


@dataclass
class LaunchedInPods(NoTunables):
    """What the operator is connected to: reports of pods about their tunables."""

    pods: Mapping[str, StoryPod]
    frozen: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tunable: what its autotuner chose, also while a table hides it."""

    def launched(self, target: str, definition: str) -> LaunchedTunable | None:
        reports = [
            process.tunables[definition]
            for pod in self.pods.values()
            for process in RuntimeTunables(pod.sockets).processes()
            if definition in process.tunables
        ]
        return self._of(reports) if len({each.source for each in reports}) == 1 else None

    def _of(self, reports: list[TunableReport]) -> LaunchedTunable:
        chosen = [a.config for each in reports for a in each.asked if a.how == "frozen"]
        for config in filter(None, chosen):
            self.frozen.setdefault(reports[0].id, config)
        return LaunchedTunable(
            definition=reports[0].id,
            family=reports[0].family,
            module=reports[0].module,
            source=reports[0].source,
            frozen=self.frozen.get(reports[0].id),
            ways=reports[0].ways,
            asked=tuple(
                LaunchedSizes(axes=a.axes, captured=a.captured, sizes=a.sizes)
                for each in reports
                for a in each.asked
            ),
            refused=reports[0].refused,
        )


class TableCluster(Cluster):
    """A `Cluster` with real servers, real sidecars and the operator's real store."""

    def __init__(self, folder: Path, *, pods: int = 2, **spec: Any) -> None:
        self.folder = folder
        self.pods: dict[str, StoryPod] = {}
        self.notary = Ed25519Notary(folder / "keys")
        policy = yaml.safe_load(POLICY)
        policy["spec"] = {k: v for k, v in policy["spec"].items() if k != "windows"} | spec
        super().__init__(OPEN, pods=0, policy=policy)
        self.store = SqliteStore(folder / "store", clock=self.clock)
        self.stored = StoreLedger(
            self.store,
            self.notary,
            artifacts=folder / "artifacts",
            results=ResultFolder(folder / "results"),
        )
        self.ledger = self.stored  # type: ignore[assignment]  # the real one
        self.tunables = LaunchedInPods(self.pods)
        self.restart()
        for number in range(pods):
            self.start_pod(f"chat-{number}")

    def start_pod(self, name: str) -> ServerPod:
        made = super().start_pod(name)
        ref = PodRef(namespace=self.namespace, name=name, uid=made.uid)
        self.pods[name] = StoryPod(self.folder / "p" / name, self, ref)
        return made

    def sidecars(self) -> None:
        """Let every server launch, and every sidecar work."""
        for pod in self.pods.values():
            pod.serve()
            pod.turn(0.0)

    def blocks(self) -> set[int]:
        """Return the blocks that launches of all servers run."""
        return {pod.serve() for pod in self.pods.values()}

    def close(self) -> None:
        for pod in self.pods.values():
            pod.close()
        self.store.close()

    # --- the experiment ---------------------------------------------------------------------------

    def finished_experiment(self, name: str = "exp-1", *, size: int = SIZE) -> str:
        """Let an experiment on the servers' tunable have ended with a win; return the tunable."""
        self.until(lambda: self.target().status.environment is not None)
        pod = next(iter(self.pods.values()))
        (process,) = RuntimeTunables(pod.sockets).processes()
        ((definition, report),) = process.tunables.items()
        live = baseline(self.operator.world, self.target(), definition)
        environment = self.target().status.environment
        assert live is not None
        assert environment is not None
        axes = next(dict(a.axes) for a in report.asked if a.axes["elements"] == size)
        best = max(report.space["configs"], key=lambda each: each["kwargs"]["BLOCK"])
        rules = rules_of([ClassResult(axes=axes, in_force_us=2.0, best=best)])
        belief = table_wins.belief_of(definition, [axes], id=digest_of(name))
        self.stored.believe(belief)
        asked = table_wins.plan_of(belief, incumbent=live, environment=environment)
        ended = table_wins.experiment_of(asked, name)
        body = ended.model_dump(mode="json", by_alias=True, exclude_none=True)
        made: Obj = self.put(EXPERIMENTS, {**body, "spec": write(ended.spec)})
        status = {"status": {"phase": "Verifying", "jobRefs": write(ended.status)["jobRefs"]}}
        self.change(EXPERIMENTS, name, status, subresource="status")
        (facts,) = RuntimeSocket(pod.sockets).environments()
        table_wins.leave(
            self.folder / "results",
            made["metadata"]["uid"],
            asked,
            table_wins.won(*rules, name=definition),
            name=name,
            environment=server_side(facts),
        )
        return definition

    def proposal(self, experiment: str = "exp-1") -> SwapProposal:
        """Return the proposal of an experiment."""
        every = self.proposals()
        return next(each for each in every if each.spec.experiment_ref == experiment)
