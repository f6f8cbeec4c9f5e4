"""A pod of an experiment on a tunable as its manifest says: the runner, and the server beside it.

The server's container runs with another user and another folder than the runner, only the delivered
packages, and kernels that Triton interprets.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from tests.expect import raises_code
from tests.operators import examples
from tests.operators.program.experiment_pod import SERVER_PACKAGES, ExperimentPod
from tests.tunables import test_tune
from tests.tunables.hosts import children_of, eventually

from retuned.api.target import Vendor
from retuned.clock import FakeClock
from retuned.contract import Environment, Workload
from retuned.errors import TemporaryError
from retuned.experiment.log_transport import Sender
from retuned.experiment.log_transport import read as read_log
from retuned.experiment.pod_results import PREEMPTED
from retuned.experiment.tunable_task import TunableInputs
from retuned.experiment.tunables import variant_of
from retuned.lab.evidence_check import wrong_with
from retuned.runtime.core.environment import environment as facts_here
from retuned.stages.experiment import Budget, plan
from retuned.stages.hypothesis import TABLE_STRUCTURE, Hypothesis
from retuned.stages.verdict import EvidenceDocument, Reason, Status
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned_operator.controllers.ports import TunableSource
from retuned_operator.manifests import JobRequest, JobSettings, ServerImage, job_objects
from retuned_operator.manifests.server_container import HOST_DIR, SERVER
from retuned_operator.schema import JobRole, KernelExperiment, PolicyRef, experiment_spec, read
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.results import ResultFolder

NAME = "tunable:autotune:_scaled:00000000"
INCUMBENT = variant_of(NAME, [], author="server", resolved="frozen")
SERVED = Environment(arch=str(facts_here()["cpu"]), triton=triton.__version__)
UID = "pod-1"


def inputs(folder: Path, **changed: Any) -> TunableInputs:
    """Return what the sidecar of a server with the small kernel would report."""
    facts = test_tune.environment(folder) | {"path": [SERVER_PACKAGES]}
    facts |= {"versions": {"torch": torch.__version__, "triton": triton.__version__}}
    facts |= changed
    source = {"kernel": "_scaled", "module": "server_kernels", "source": "sha256:" + "1" * 64}
    other = {**test_tune.recipe(), "axes": {"elements": 64}}
    return TunableInputs.of(
        test_tune.report() | source,
        [other, test_tune.recipe()],
        environment=facts,
        measured_in=SERVED,
    )


def an_experiment() -> KernelExperiment:
    belief = Hypothesis(
        id=examples.BELIEF,
        definition=NAME,
        workloads=(Workload(definition=NAME, axes={"elements": 1024}, weight=1.0),),
        share=0.3,
        expected_gain_ratio=2.0,
        expected_saving=0.1,
        because="a test",
        structures=(TABLE_STRUCTURE,),
    )
    spec = experiment_spec(
        plan(
            belief,
            incumbent=INCUMBENT.digest,
            environment=SERVED.digest,
            budget=Budget(max_seconds=60.0),
        ),
        target="chat",
        gpu_model="none",
        policy=PolicyRef(name="prod", generation=1, digest=examples.POLICY),
    )
    return read(KernelExperiment, examples.an_object("KernelExperiment", "exp-1", spec))


@dataclass
class Sources:
    """A fake of what the operator hears from sidecars."""

    known: dict[tuple[str, str], TunableSource] = field(default_factory=dict)

    def source(self, target: str, tunable: str) -> TunableSource | None:
        return self.known.get((target, tunable))


IMAGE = ServerImage(image="registry.example/vllm@sha256:" + "a" * 64, python=sys.executable)


@contextmanager
def a_ledger(folder: Path, sources: Sources) -> Iterator[StoreLedger]:
    with closing(SqliteStore(folder / "state", clock=FakeClock())) as store:
        yield StoreLedger(
            store,
            Ed25519Notary(folder / "keys"),
            artifacts=folder / "artifacts",
            results=ResultFolder(folder / "kept"),
            tunables=sources,
        )


class TunablePod:
    """A pod with two containers; its paths are short, as sockets need."""

    def __init__(self, place: Path, *, task: str | None = None, **changed: Any) -> None:
        (place / "server").mkdir()
        place.chmod(0o755)
        sources = Sources()
        made = TunableSource(inputs=inputs(place / "server", **changed), server=IMAGE)
        sources.known["serving/chat", NAME] = made
        resource = an_experiment()
        with a_ledger(place, sources) as ledger:
            self.request = JobRequest(
                role=JobRole.VERIFY,
                experiment=resource.metadata.name,
                experiment_uid=resource.metadata.uid,
                experiment_namespace="serving",
                attempt=1,
                task=ledger.task(resource, JobRole.VERIFY) if task is None else task,
                vendor=Vendor.CPU,
                model="none",
                deadline_s=600,
                server=ledger.server(resource),
            )
        self.objects = job_objects(self.request, JobSettings(image="an-image"))
        (place / "p").mkdir()
        self.pod = ExperimentPod(place / "p", self.objects, uid=UID, packages=place / "server")

    def sender(self) -> Sender:
        uid = self.request.experiment_uid
        return Sender(experiment=uid, job=self.request.name, pod=UID)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pod") as folder:
        yield Path(folder)


def test_a_table_wins_and_its_evidence_can_be_signed(place: Path) -> None:
    made = TunablePod(place)
    with made.pod.server() as server:
        assert made.pod.run() == 0, (made.pod.stdout, made.pod.stderr)
        assert server.wait(30.0) == 0  # else the pod would not complete
    told = read_log(made.pod.log, sender=made.sender())
    folder, resource = ResultFolder(place / "kept"), an_experiment()
    folder.keep(resource.metadata.uid, made.request.name, UID, told)
    (result,) = folder.of(resource.metadata.uid, made.request.name)
    best = result.best()
    assert best is not None, result.turns
    assert (best.verdict.status, best.verdict.reason) == (Status.PROMOTE, Reason.FASTER)
    assert best.verdict.evidence is not None
    raw = folder.evidence(resource.metadata.uid, result, best.verdict.evidence)
    assert raw is not None
    assert wrong_with(raw, resource.spec.stage_plan(), best, environment=SERVED.digest) is None
    assert EvidenceDocument.model_validate_json(raw).environment == SERVED
    name = f"artifacts/{best.solution.digest.removeprefix('sha256:')}/table.json"
    assert told.files[name].decode() == best.solution.sources[0].content
    (turn,) = result.turns
    assert (turn.tried, turn.correct) == (6, 2)
    fact = result.fact(JobRole.VERIFY)
    assert (fact.winner, fact.tried, fact.correct) == (best.solution.digest, 6, 2)
    assert made.pod.message["best"]["candidate"] == best.solution.digest


def test_a_pod_on_another_version_measures_nothing(place: Path) -> None:
    versions = {"torch": torch.__version__, "triton": triton.__version__, "vllm": "0.26.0"}
    made = TunablePod(place, versions=versions)
    with made.pod.server() as server:
        assert made.pod.run() == 5
        assert server.wait(30.0) == 0
    assert made.pod.message["code"] == "environment-differs"
    assert "0.26.0" in made.pod.message["message"]
    assert made.pod.left == []


def test_a_preempted_pod_leaves_nothing_and_ends_the_server(place: Path) -> None:
    made = TunablePod(place)
    with made.pod.server() as server:
        runner = made.pod.start()
        eventually(lambda: bool(children_of(server.pid)))
        runner.send_signal(signal.SIGTERM)
        runner.communicate(timeout=30.0)
        assert runner.returncode == PREEMPTED
        assert server.wait(30.0) == 0
    assert made.pod.left == []
    assert made.pod.message["code"] == "preempted"


def test_a_server_that_is_terminated_first_makes_no_finding(place: Path) -> None:
    made = TunablePod(place)
    with made.pod.server() as server:
        runner = made.pod.start()
        eventually(lambda: bool(children_of(server.pid)))
        server.send_signal(signal.SIGTERM)
        runner.communicate(timeout=60.0)
        assert server.wait(30.0) == 0
    assert runner.returncode == 5
    assert made.pod.left == []
    assert made.pod.message["code"] in ("host-gone", "host-absent")


def test_a_task_that_cannot_be_read_ends_both_containers(place: Path) -> None:
    made = TunablePod(place, task='{"plan": 3}')
    with made.pod.server() as server:
        assert made.pod.run() == 3
        assert server.wait(30.0) == 0
    assert made.pod.message["code"] == "bad-task"


def test_the_task_has_the_recipes_of_the_plan_alone(place: Path) -> None:
    made = TunablePod(place)
    task = json.loads(made.request.task)
    assert set(task) == {"plan", "root", "tunable"}
    parsed = TunableInputs.model_validate(task["tunable"])
    assert [each.axes for each in parsed.recipes] == [{"elements": 1024}]
    assert made.request.server == IMAGE
    containers = made.objects[1]["spec"]["template"]["spec"]["containers"]
    (server,) = (each for each in containers if each["name"] == SERVER)
    assert HOST_DIR in {each["mountPath"] for each in server["volumeMounts"]}


def test_a_tunable_that_no_server_reports_is_waited_for(place: Path) -> None:
    with a_ledger(place, Sources()) as ledger:
        with raises_code(TemporaryError, "temporary", NAME, "serving/chat"):
            ledger.task(an_experiment(), JobRole.VERIFY)
        with raises_code(TemporaryError, "temporary"):
            ledger.server(an_experiment())


def test_a_kernel_has_no_container_of_the_server(place: Path) -> None:
    spec = experiment_spec(
        examples.a_plan(),
        target="chat",
        gpu_model="none",
        policy=PolicyRef(name="prod", generation=1, digest=examples.POLICY),
    )
    resource = read(KernelExperiment, examples.an_object("KernelExperiment", "exp-1", spec))
    with a_ledger(place, Sources()) as ledger:
        assert ledger.server(resource) is None
        assert "tunable" not in json.loads(ledger.task(resource, JobRole.SEARCH))
