"""From drift to a SwapProposal: the whole operator, and the real program in its experiments' pods.

The API server is the fake one, with the rights that the chart gives; what a sidecar tells is told
to the operator as the agent API does. Everything between is the real thing: a catalog's kernel is
searched and verified by child processes that compile and time C++, and their logs are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakeapi.server import FakeApi
from tests.operators.program.kubelet import Kubelet
from tests.operators.program.test_program import eventually
from tests.operators.program.whole_operator import a_cluster, a_node, running, settings_in

from retuned.api.agent import DriftPost, Hello, PodRef, ProcessEnvironment, ProfileReport
from retuned.clock import SystemClock
from retuned.contract import Language
from retuned.lab.toolchain import environment_of
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned_operator.agent_api.ports import PodRecord, Receipt
from retuned_operator.assembly import Operator
from retuned_operator.kube.resources import (
    EVENTS,
    EXPERIMENTS,
    JOBS,
    PODS,
    PROPOSALS,
    Obj,
)
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.settings import Settings

pytestmark = pytest.mark.slow
MINUTE_NS = 60 * 10**9
_LONG_S = 400.0


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with a_cluster(experiments={"budget": {"maxTrials": 3}}) as fake:
        yield fake


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return settings_in(tmp_path, monkeypatch)


@pytest.fixture
def kubelet(fake: FakeApi) -> Iterator[Kubelet]:
    with a_node(fake) as made:
        yield made


@dataclass
class Server:
    """A server's pod, and what its sidecar tells."""

    fake: FakeApi
    pod: PodRecord

    @classmethod
    def started(cls, fake: FakeApi) -> Server:
        """Start the pod."""
        body = {
            "metadata": {"name": "chat-0", "namespace": "serving", "labels": {"app": "chat"}},
            "spec": {"containers": [{"name": "server"}, {"name": SIDECAR}]},
        }
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        uid = fake.make(PODS, body, **ready)["metadata"]["uid"]
        pod = PodRecord(namespace="serving", name="chat-0", uid=uid, target="serving/chat")
        return cls(fake=fake, pod=pod)

    def tells(self, operator: Operator) -> None:
        """Tell who it is, that its traffic changed, and two windows of the new traffic."""
        clock = SystemClock()
        receipt = Receipt(pod=self.pod, at=clock.now())
        about: Any = {
            "pod": PodRef(namespace="serving", name="chat-0", uid=self.pod.uid),
            "target": "serving/chat",
        }
        operator.reports.take(receipt, self.hello())
        operator.reports.take(receipt, DriftPost(**about, id="w-1", report=drift()))
        for n in (2, 3):
            said = ProfileReport(**about, id=f"w-{n}", profile=window(n * MINUTE_NS))
            operator.reports.take(receipt, said)

    def hello(self) -> Hello:
        """Return what it runs on: the processor of this machine."""
        here = environment_of(Language.CPU_CPP).arch
        return Hello(
            pod=PodRef(namespace="serving", name="chat-0", uid=self.pod.uid),
            target="serving/chat",
            version=1,
            release="1",
            at=SystemClock().now(),
            environments=(ProcessEnvironment(process="1", cpu=here),),
        )


def window(start_ns: int) -> WorkloadProfile:
    """Return a minute in which long prompts keep one kernel busy for half of the time."""
    dims = ((128, 256), (256, 256), (256,))
    signature = Signature(
        kernel="retuned::linear_w8", dims=dims, dtypes=("float32", "int8", "float32")
    )
    stat = SignatureStat(
        signature=signature, launches=15_000, gpu_time_ns=30 * 10**9, median_ns=2_000_000
    )
    return WorkloadProfile(
        window_start_ns=start_ns, window_ns=MINUTE_NS, observed_ns=MINUTE_NS, stats=(stat,)
    )


def drift() -> DriftReport:
    return DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=MINUTE_NS,
        sentence="longer prompts",
    )


def status_of(fake: FakeApi) -> Obj:
    """Return the status of the one experiment; empty before there is one."""
    found = fake.api().list(EXPERIMENTS).items
    status: Obj = found[0].get("status", {}) if found else {}
    return status


def until(fake: FakeApi, reached: Callable[[Obj], object]) -> Obj:
    """Wait until something is so of the experiment's status, or it has failed."""

    def seen() -> bool:
        status = status_of(fake)
        assert status.get("phase") not in ("Refused", "Outdated", "Aborted"), status
        return bool(reached(status))

    eventually(seen, seconds=_LONG_S)
    return status_of(fake)


def logs_read(fake: FakeApi) -> list[str]:
    """Return the pods whose logs were asked for, once for each time."""
    return [each.name for each in fake.faults.seen("get", "pods") if each.subresource == "log"]


@pytest.mark.timeout(900)  # pods that compile and measure: minutes on a busy machine
def test_drift_becomes_a_proposal_by_way_of_pods_whose_logs_are_read_once(
    fake: FakeApi, settings: Settings, kubelet: Kubelet
) -> None:
    server = Server.started(fake)
    with running(fake, settings) as operator:
        server.tells(operator)
        until(fake, lambda status: len(status.get("jobRefs", ())) == 3)
    with running(fake, settings) as operator:  # another operator goes on where that one ended
        server.tells(operator)
        status = until(fake, lambda status: status.get("phase") in ("Succeeded", "Failed"))
        said = [pod.stdout + pod.stderr for pod in kubelet.pods]
        assert (status["phase"], status["reason"]) == ("Succeeded", "proposed"), said
        (proposal,) = fake.api().list(PROPOSALS).items
        assert proposal["spec"]["speedup"]["lower"] > 1.0
        assert proposal["metadata"]["name"] == status["proposal"]
        digest = proposal["spec"]["artifact"]["digest"]
        assert operator._state.ledger.artifact(digest) is not None
        # its evidence holds for what the server says it runs on, and people are asked
        eventually(
            lambda: (
                (fake.api().list(PROPOSALS).items[0].get("status") or {}).get("phase")
                == "AwaitingApproval"
            )
        )
    assert [pod.message["role"] for pod in kubelet.pods] == ["compile", "search", "verify"]
    assert kubelet.pods[0].message["tried"] > 0  # it compiled for what the server says it is
    assert len(logs_read(fake)) == len(set(logs_read(fake))) == 3
    assert [job["metadata"]["name"] for job in fake.api().list(JOBS).items if _lives(job)] == []


def _lives(job: Obj) -> bool:
    return not job.get("status", {}).get("conditions")


@pytest.mark.timeout(900)  # pods that compile and measure: minutes on a busy machine
def test_a_log_that_was_cut_off_is_made_again_and_said(
    fake: FakeApi, settings: Settings, kubelet: Kubelet
) -> None:
    def cut_first(log: bytes) -> bytes:  # of the search; another pod has compiled before
        return log[: len(log) // 2] if len(kubelet.pods) == 2 else log

    kubelet.spoil = cut_first
    with running(fake, settings) as operator:
        Server.started(fake).tells(operator)
        status = until(fake, lambda status: status.get("lostResults") == 1)
        status = until(
            fake,
            lambda status: any(r.get("result") for r in status["jobRefs"] if r["role"] == "search"),
        )
    searches = [ref for ref in status["jobRefs"] if ref["role"] == "search"]
    attempts = {ref["attempt"]: ref.get("result") for ref in searches}
    assert attempts[1] is None
    assert attempts[2] == kubelet.pods[2].environment["RETUNED_POD_UID"]
    events = [each["note"] for each in _events(fake)]
    assert any("results-truncated" in note for note in events), events


def _events(fake: FakeApi) -> list[Obj]:
    return list(fake.api().list(EVENTS).items)
