"""From pods' posts to a signed table: the whole operator, and both containers of its one Job.

The API server is the fake one, with the rights that the chart gives; what sidecars post is given to
the operator as the agent API does. Everything between is the real thing: a child process of the
server's Python searches and times the server's own kernel beside the runner, and the pod's log is
read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.program.experiment_pod import SERVER_PACKAGES
from tests.operators.program.kubelet import Kubelet
from tests.operators.program.test_program import eventually
from tests.operators.program.whole_operator import a_cluster, a_node, running, settings_in
from tests.tunables import test_tune

from retuned.api.agent import Hello, PodRef, ProcessEnvironment, TunablePost
from retuned.clock import SystemClock
from retuned.runtime.core.environment import environment as facts_here
from retuned.runtime.tunables.records import canonical, parse_table
from retuned.store.artifact_folder import MANIFEST
from retuned_operator.agent_api.ports import PodRecord, Receipt
from retuned_operator.assembly import Operator
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    JOBS,
    PODS,
    PROPOSALS,
    TARGETS,
    Obj,
)
from retuned_operator.manifests.jobs import RUNNER
from retuned_operator.manifests.server_container import SERVER
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.settings import Settings

pytestmark = pytest.mark.slow
TARGET = "serving/chat"
NAME = "tunable:autotune:_scaled:00000000"
SOURCE = "sha256:" + "1" * 64
IMAGE = "registry.example/vllm@sha256:" + "a" * 64
AXES = {"elements": 1024}
FACTS = ProcessEnvironment(process="1", cpu=str(facts_here()["cpu"]), triton=triton.__version__)
_LONG_S = 400.0


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with a_cluster() as fake:
        yield fake


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return settings_in(tmp_path, monkeypatch)


@pytest.fixture
def packages() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="server-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def kubelet(fake: FakeApi, packages: Path) -> Iterator[Kubelet]:
    with a_node(fake, packages=packages) as made:
        yield made


def text(packages: Path) -> str:
    """Return what an experiment needs of a server whose autotuner chose once, for all sizes."""
    facts = test_tune.environment(packages) | {"path": [SERVER_PACKAGES], "device": None}
    facts["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
    report = test_tune.report() | {
        "kernel": "_scaled",
        "module": "server_kernels",
        "source": SOURCE,
        "ways": {"next-call": "on", "recapture": "on"},
        "asked": [{"axes": AXES, "launches": 900, "how": "frozen"}],
    }
    return canonical({"report": report, "environment": facts, "recipes": [test_tune.recipe()]})


@dataclass
class Servers:
    """The pods of the target, and what their sidecars post."""

    pods: list[PodRecord]
    text: str

    @classmethod
    def started(cls, fake: FakeApi, packages: Path, *images: str) -> Servers:
        """Start one pod for each image."""
        pods = []
        for number, image in enumerate(images):
            name = f"chat-{number}"
            body = {
                "metadata": {"name": name, "namespace": "serving", "labels": {"app": "chat"}},
                "spec": {"containers": [{"name": "server"}, {"name": SIDECAR}]},
            }
            made = fake.make(
                PODS,
                body,
                phase="Running",
                conditions=[{"type": "Ready", "status": "True"}],
                containerStatuses=[{"name": "server", "imageID": image}],
            )
            uid = made["metadata"]["uid"]
            pods.append(PodRecord(namespace="serving", name=name, uid=uid, target=TARGET))
        return cls(pods=pods, text=text(packages))

    def post(self, operator: Operator) -> None:
        """Tell what every pod runs on, and what a window of its traffic launched."""
        now = SystemClock().now()
        for pod in self.pods:
            receipt = Receipt(pod=pod, at=now)
            about: Any = {
                "pod": PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid),
                "target": TARGET,
            }
            hello = Hello(**about, version=1, release="1", at=now, environments=(FACTS,))
            operator.reports.take(receipt, hello)
            operator.reports.take(receipt, self._tunable(about))

    def _tunable(self, about: dict[str, Any]) -> TunablePost:
        body: dict[str, Any] = {
            "name": NAME,
            "family": "autotune",
            "kernel": "_scaled",
            "module": "server_kernels",
            "source": SOURCE,
            "frozen": canonical(test_tune.recipe()["call"]["in_force"]),
            "facts": FACTS,
            "observed_s": 300.0,
            "busy_us": 200e6,
            "used": [{"axes": AXES, "launches": 900.0, "time_us": 90e6, "how": "frozen"}],
            "text": self.text,
        }
        return TunablePost.model_validate(about | body)


@dataclass
class Story:
    """What is seen of the cluster from outside."""

    fake: FakeApi
    servers: Servers
    operator: Operator

    def status(self) -> Obj:
        """Return the status of the one experiment; empty before there is one."""
        found = self.fake.api().list(EXPERIMENTS).items
        assert len(found) < 2, [each["metadata"]["name"] for each in found]
        status: Obj = found[0].get("status", {}) if found else {}
        return status

    def reason(self) -> str:
        """Return why the target's tunable gets no experiment now, as its status has it."""
        target = self.fake.api().get(TARGETS, "chat", namespace="serving")
        (state,) = target.get("status", {}).get("tunables") or [{}]
        assert state.get("name", NAME) == NAME
        return str(state.get("reason", ""))

    def until(self, reached: Callable[[], object]) -> None:
        """Wait for something, while sidecars post as they do after each window."""

        def seen() -> bool:
            self.servers.post(self.operator)
            return bool(reached())

        eventually(seen, seconds=_LONG_S)


def ended(story: Story) -> Obj:
    """Wait for the end of the experiment."""
    over = ("Succeeded", "Failed", "NoImprovement", "Refused", "Outdated", "Aborted")
    story.until(lambda: story.status().get("phase") in over)
    return story.status()


@pytest.mark.timeout(900)  # a pod that measures in eight processes: minutes on a busy machine
def test_posts_become_a_signed_table_by_way_of_one_pod_with_the_servers_container(
    fake: FakeApi, settings: Settings, kubelet: Kubelet, packages: Path
) -> None:
    servers = Servers.started(fake, packages, IMAGE, f"docker-pullable://{IMAGE}")
    with running(fake, settings) as operator:
        story = Story(fake, servers, operator)
        story.until(lambda: story.reason() == "under-way")
        story.until(lambda: fake.api().list(JOBS, namespace="lab").items)
        (job,) = fake.api().list(JOBS, namespace="lab").items
        containers = job["spec"]["template"]["spec"]["containers"]
        assert [each["name"] for each in containers] == [SERVER, RUNNER]
        assert containers[0]["image"] == IMAGE
        status = ended(story)
        (pod,) = kubelet.pods
        assert (status["phase"], status["reason"]) == ("Succeeded", "proposed"), pod.stderr
        assert [ref["role"] for ref in status["jobRefs"]] == ["verify"]
        assert (status["trials"]["total"], status["trials"]["correct"]) == (6, 2)
        (proposal,) = fake.api().list(PROPOSALS).items
        spec = proposal["spec"]
        assert (spec["kernel"], proposal["metadata"]["name"]) == (NAME, status["proposal"])
        assert spec["speedup"]["lower"] > 1.05
        told = operator._state.ledger.artifact(spec["artifact"]["digest"])
        assert told is not None
        table = parse_table(json.loads(told[MANIFEST]), text=told[MANIFEST].decode())
        assert (table.digest, table.tunable) == (spec["artifact"]["digest"], NAME)
        (rule,) = table.rules
        assert rule.config["kwargs"] == {"BLOCK": 256, "MODE": 0}
        # its evidence holds for what the servers run on, and people are asked
        story.until(lambda: phase(fake) == "AwaitingApproval")
        fake.make(DECISIONS, no(proposal))
        story.until(lambda: phase(fake) == "Rejected")
        story.until(lambda: story.reason() == "all-tried")
        assert len(kubelet.pods) == 1


def phase(fake: FakeApi) -> str:
    (proposal,) = fake.api().list(PROPOSALS).items
    return str((proposal.get("status") or {}).get("phase"))


def no(proposal: Obj) -> Obj:
    """Return the rejection of a proposal by a person."""
    name, uid = proposal["metadata"]["name"], proposal["metadata"]["uid"]
    return examples.a_decision(
        proposalRef={"name": name, "uid": uid},
        digest=proposal["spec"]["artifact"]["digest"],
        decision="Reject",
    )


@pytest.mark.timeout(900)
def test_no_pod_is_made_while_servers_run_two_images(
    fake: FakeApi, settings: Settings, kubelet: Kubelet, packages: Path
) -> None:
    servers = Servers.started(fake, packages, IMAGE, IMAGE[:-1] + "b")
    with running(fake, settings) as operator:
        story = Story(fake, servers, operator)
        status = ended(story)
        assert (status["phase"], status["reason"]) == ("Refused", "server-image-differs")
        # it is tried again later: the servers were the cause, and nothing was searched
        story.until(lambda: story.reason() == "experiment-failed")
    assert kubelet.pods == []
    assert list(fake.api().list(JOBS).items) == []
