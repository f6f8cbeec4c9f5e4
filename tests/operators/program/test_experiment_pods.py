"""The program of an experiment's pods, run as the manifests say, read as the operator reads it."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.lab.evolve.scripted_endpoint import Received, Reply, chat, endpoint
from tests.operators import examples
from tests.operators.program.experiment_pod import ExperimentPod

from retuned.api.experiment import JobRef
from retuned.api.target import Vendor
from retuned.clock import FakeClock
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.control import ResultFact
from retuned.experiment.pod_results import BREACH, COMPILE_ERROR, FINDINGS, PREEMPTED, WRONG_RESULT
from retuned.lab.harness import landlock
from retuned.lab.toolchain import environment_of
from retuned.stages.experiment import Budget, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned_operator.llm_quota import LlmQuota
from retuned_operator.manifests import JobRequest, JobSettings, job_objects
from retuned_operator.manifests.jobs import FINAL_EXIT_CODES, TELLER
from retuned_operator.manifests.settings import Endpoint
from retuned_operator.schema import JobRole, KernelExperiment, PolicyRef, experiment_spec, read
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.reports import SOLUTION
from retuned_operator.store.results import Collector, ResultFolder

NAME = "linear_w8_n32_k64"
SLOW = """#include <cstdint>
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  const float* x = (const float*)tensors[0];
  const int8_t* w = (const int8_t*)tensors[1];
  const float* scale = (const float*)tensors[2];
  float* y = (float*)tensors[3];
  const int64_t M = axes[0], N = axes[1], K = axes[2];
  for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int again = 0; again < AGAIN; ++again)
        for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * (float)w[n * K + k];
      y[m * N + n] = sum / AGAIN * scale[n];
    }
}
"""


def variant(name: str, *, again: int = 1, old: str = "", new: str = "") -> Solution:
    assert old in SLOW
    source = (SLOW.replace(old, new) if old else SLOW).replace("AGAIN", str(again))
    return Solution(
        name=name,
        definition=NAME,
        language=Language.CPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cpp", content=source),),
        structure="plain",
    )


INCUMBENT = variant("slow", again=20)
"""So slow that whatever is honest is faster, on a machine with much else to do."""


class Cluster:
    """An operator's ledger, pods that have ended with their logs, and one experiment."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.started: dict[str, tuple[JobRef, ExperimentPod]] = {}
        self.store = SqliteStore(place / "state", clock=FakeClock())
        self.store.add(SOLUTION, INCUMBENT.digest, INCUMBENT.model_dump(mode="json"), phase="final")
        self.folder = folder = ResultFolder(place / "kept")
        self.ledger = StoreLedger(
            self.store,
            Ed25519Notary(place / "keys"),
            artifacts=place / "artifacts",
            results=folder,
            collector=Collector(folder, pods=lambda _: self.ended(), logs=self, clock=FakeClock()),
        )
        self.refs: tuple[JobRef, ...] = ()
        self.jobs = JobSettings(image="an-image")

    def asks(self, url: str, **bounds: Any) -> None:
        """Let pods ask a model at an address."""
        model = Endpoint(
            cidr="127.0.0.1/32",
            url=url,
            model="scripted",
            prompt_usd_per_mtok=1.0,
            completion_usd_per_mtok=2.0,
            **bounds,
        )
        self.jobs = JobSettings(image="an-image", endpoint=model, endpoint_secret="model-key")
        self.ledger = StoreLedger(
            self.store,
            Ed25519Notary(self.place / "keys"),
            artifacts=self.place / "artifacts",
            results=self.folder,
            collector=Collector(
                self.folder, pods=lambda _: self.ended(), logs=self, clock=FakeClock()
            ),
            asking=LlmQuota(self.store, self.jobs, clock=FakeClock()),
        )

    def ended(self) -> list[dict[str, Any]]:
        """Return the pods as the API server tells of them."""
        return [
            {
                "metadata": {
                    "name": uid,
                    "namespace": "serving",
                    "uid": uid,
                    "ownerReferences": [{"uid": ref.uid, "controller": True}],
                },
                "status": {"phase": "Succeeded"},
            }
            for uid, (ref, _) in self.started.items()
        ]

    def logs(self, namespace: str, name: str, *, container: str, limit_bytes: int) -> bytes:
        """Return what the container of a pod has written."""
        assert (namespace, container) == ("serving", TELLER)
        return self.started[name][1].log[:limit_bytes]

    def results(self) -> tuple[ResultFact, ...]:
        """Return what the operator reads, and let the first result of a Job count."""
        found = tuple(self.ledger.results(self.experiment()))
        pods = {each.job: each.pod_uid for each in found}
        self.refs = tuple(r.model_copy(update={"result": pods.get(r.name)}) for r in self.refs)
        return found

    def experiment(self, **budget: Any) -> KernelExperiment:
        belief = Hypothesis(
            id=examples.BELIEF,
            definition=NAME,
            workloads=(Workload(definition=NAME, axes={"M": 8}, weight=1.0),),
            share=0.3,
            expected_gain_ratio=2.0,
            expected_saving=0.1,
            because="a test",
        )
        limits = {"max_candidates": 2, "max_seconds": 200.0, "finalists": 1, **budget}
        asked = plan(
            belief,
            incumbent=INCUMBENT.digest,
            environment=examples.WORLD,  # the servers', which is never the lab's
            budget=Budget(**limits),
        ).model_copy(update={"batch_invariant": False})  # the catalog's fastest are not
        spec = experiment_spec(
            asked,
            target="chat",
            gpu_model="none",
            policy=PolicyRef(name="prod", generation=1, digest=examples.POLICY),
        )
        resource = read(KernelExperiment, examples.an_object("KernelExperiment", "exp-1", spec))
        status = resource.status.model_copy(update={"job_refs": self.refs})
        return resource.model_copy(update={"status": status})

    def pod(
        self, role: JobRole, *, task: str | None = None, uid: str = "pod-1", **budget: Any
    ) -> ExperimentPod:
        resource = self.experiment(**budget)
        request = JobRequest(
            role=role,
            experiment=resource.metadata.name,
            experiment_uid=resource.metadata.uid,
            experiment_namespace="serving",
            attempt=1,
            task=self.ledger.task(resource, role) if task is None else task,
            vendor=Vendor.CPU,
            model="none",
            deadline_s=600,
        )
        found = JobRef(name=request.name, uid=f"uid-{request.name}", role=role)
        self.refs = (*self.refs, found)
        place = self.place / f"{role}-{uid}"
        place.mkdir()
        objects = job_objects(request, self.jobs)
        pod = ExperimentPod(place, objects, uid=uid)
        self.started[uid] = (found, pod)
        return pod

    def handing(self, *solutions: Solution, **plan_changes: Any) -> str:
        """Return a trusted pod's task with these variants instead of a search's."""
        task = json.loads(self.ledger.task(self.experiment(), JobRole.VERIFY))
        task["solutions"] += [each.model_dump(mode="json") for each in solutions]
        task["plan"] |= plan_changes
        return json.dumps(task)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    place = Path(tempfile.mkdtemp(prefix="retuned-pods-"))
    place.chmod(0o755)  # the pod's user is another one than ours
    try:
        made = Cluster(place)
        with closing(made.store):
            yield made
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
def test_what_a_search_finds_a_trusted_pod_proves_and_the_operator_takes(cluster: Cluster) -> None:
    search = cluster.pod(JobRole.SEARCH)
    assert search.run() == 0, search.stdout + search.stderr
    assert (search.results / FINDINGS).read_text() == search.stdout
    assert (search.results / FINDINGS).stat().st_uid == search.user
    (searched,) = cluster.results()
    assert searched.tried == 2
    assert searched.finalists == 1, search.stdout
    assert searched.winner is None  # nobody trusts a search
    said = search.message
    assert (said["role"], said["tried"], said["promoted"]) == ("search", 2, 1)

    verify = cluster.pod(JobRole.VERIFY, uid="pod-2")
    assert verify.run() == 0, verify.stdout + verify.stderr
    proven = next(each for each in cluster.results() if each.pod_uid == "pod-2")
    resource = cluster.experiment()
    assert (proven.tried, proven.finalists) == (1, 1)
    assert proven.winner == verify.message["best"]["candidate"]
    win = cluster.ledger.win(resource, job=proven.job, pod_uid="pod-2")
    assert win is not None
    assert proven.winner is not None
    files = cluster.ledger.artifact(proven.winner)
    assert files is not None
    assert {"kernel.so", "artifact.sig"} < set(files)
    assert not any("partial" in each for each in search.left + verify.left)


@pytest.mark.slow
def test_what_a_pod_could_not_compile_is_never_tried_by_a_search(cluster: Cluster) -> None:
    broken = variant("broken", old="float sum", new="flaot sum")
    arch = environment_of(Language.CPU_CPP).arch
    task = json.loads(cluster.ledger.task(cluster.experiment(), JobRole.COMPILE, arch=arch))
    assert task["arch"] == arch
    task["plan"]["generators"] = ["evolve"]
    task["written"] = [each.model_dump(mode="json") for each in (broken, variant("fine"))]
    compiling = cluster.pod(JobRole.COMPILE, task=json.dumps(task))
    assert compiling.run() == 0, compiling.stdout + compiling.stderr
    (compiled,) = cluster.results()
    assert (compiled.tried, compiled.finalists, compiled.winner) == (2, 0, None)
    assert compiling.left == [FINDINGS]
    assert cluster.ledger.findings(cluster.experiment()) == ()  # nothing was tried

    searching = json.loads(cluster.ledger.task(cluster.experiment(), JobRole.SEARCH, arch=arch))
    assert [each["solution"]["name"] for each in searching["refused"]] == ["broken"]
    searching["plan"]["generators"] = ["evolve"]
    searching["written"] = task["written"]
    search = cluster.pod(JobRole.SEARCH, task=json.dumps(searching), uid="pod-2")
    assert search.run() == 0, search.stdout + search.stderr
    assert len(cluster.results()) == 2
    (tried,) = (f.solution.name for f in cluster.ledger.findings(cluster.experiment()))
    assert tried == "fine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "code", "reason"),
    [
        (variant("wrong", old="sum / AGAIN", new="2 * sum"), WRONG_RESULT, "wrong-output"),
        (variant("broken", old="float sum", new="flaot sum"), COMPILE_ERROR, "compile-failed"),
        (variant("beyond", old="y[m * N", new="y[(M + 1) * N"), BREACH, "out-of-bounds"),
    ],
    ids=["wrong", "broken", "beyond"],
)
def test_a_trusted_pod_that_finds_only_bad_variants_says_by_its_code_what_they_are(
    cluster: Cluster, bad: Solution, code: int, reason: str
) -> None:
    pod = cluster.pod(JobRole.VERIFY, task=cluster.handing(bad))
    assert pod.run() == code, pod.stdout + pod.stderr
    assert code in FINAL_EXIT_CODES
    assert pod.message["exit_code"] == code
    (fact,) = cluster.results()  # it came to its end and is complete
    assert (fact.tried, fact.correct, fact.winner) == (1, 0, None)
    assert reason in pod.stdout


def a_model(received: Received) -> Reply:
    """Write the same kernel again and again, each time with another comment."""
    if "You advise" in str(received.body["messages"][0]["content"]):
        return chat(block("json", json.dumps({"ideas": ["fewer passes"]})))
    source = variant("any").sources[0].content + f"// {secrets.token_hex(4)}"
    return chat(block("json", "{}") + block("cpp", source))


def block(word: str, text: str) -> str:
    return f"```{word}\n{text.rstrip()}\n```\n"


@pytest.mark.slow
def test_what_a_model_writes_in_one_pod_is_compiled_and_measured_by_others(
    cluster: Cluster,
) -> None:
    arch, key = environment_of(Language.CPU_CPP).arch, "k" * 40
    with endpoint(a_model) as server:
        cluster.asks(server.url, variants=3)
        resource = cluster.experiment()
        task = cluster.ledger.task(resource, JobRole.GENERATE, arch=arch)
        pod = cluster.pod(JobRole.GENERATE, task=task)
        assert pod.run(RETUNED_ENDPOINT_KEY=key) == 0, pod.stdout + pod.stderr
    assert {each.headers.get("authorization") for each in server.received} == {f"Bearer {key}"}
    (fact,) = cluster.results()
    assert (fact.tried, fact.correct, fact.finalists, fact.winner) == (3, 0, 0, None)
    told = task + pod.log.decode() + pod.stdout + pod.message_file.read_text()
    assert key not in told
    assert pod.left == [FINDINGS]
    assert not list(pod.work.rglob("compiled"))  # it neither compiles nor runs
    for role in (JobRole.COMPILE, JobRole.SEARCH):
        handed = json.loads(cluster.ledger.task(cluster.experiment(), role, arch=arch))
        assert len(handed["written"]) == 3
        assert {each["trust"] for each in handed["written"]} == {"L"}
        assert not handed.get("evolve")
    verifying = json.loads(cluster.ledger.task(cluster.experiment(), JobRole.VERIFY, arch=arch))
    assert "written" not in verifying


def test_a_model_that_does_not_answer_ends_its_pod_without_a_result(cluster: Cluster) -> None:
    with endpoint(lambda _: Reply(status=403, length=0)) as server:
        cluster.asks(server.url)
        arch = environment_of(Language.CPU_CPP).arch
        task = cluster.ledger.task(cluster.experiment(), JobRole.GENERATE, arch=arch)
        pod = cluster.pod(JobRole.GENERATE, task=task)
        assert pod.run(RETUNED_ENDPOINT_KEY="k" * 40) == 5
    assert pod.message["code"] == "harness-failed"
    assert "the model wrote nothing" in pod.message["message"]
    assert "403" in pod.message["message"]
    assert cluster.results() == ()


def test_who_does_not_know_the_servers_or_has_no_money_asks_no_model(cluster: Cluster) -> None:
    cluster.asks("http://127.0.0.1:9/v1", max_usd=2.0, max_usd_per_day=3.0)
    resource, arch = cluster.experiment(), "gfx942"

    def asked(**named: str) -> bool:
        task = json.loads(cluster.ledger.task(resource, JobRole.GENERATE, **named))
        return task["evolve"] is not None

    assert not asked()
    assert asked(arch=arch)
    assert asked(arch=arch)  # the same try, after a crash
    ref = JobRef(name="generate-1", uid="u", role=JobRole.GENERATE)
    status = resource.status.model_copy(update={"job_refs": (ref,)})
    resource = resource.model_copy(update={"status": status})
    assert not asked(arch=arch)
    task = cluster.ledger.task(resource, JobRole.GENERATE, arch=arch)
    pod = cluster.pod(JobRole.GENERATE, task=task)
    assert pod.run() == 0, pod.stdout + pod.stderr
    (fact,) = cluster.results()
    assert fact.tried == 0


def test_a_pod_with_nothing_to_verify_refuses_its_task(cluster: Cluster) -> None:
    pod = cluster.pod(JobRole.VERIFY)  # no search has found anything
    assert pod.run() == 3
    assert pod.message["code"] == "bad-task"
    assert pod.left == []
    assert 3 in FINAL_EXIT_CODES


@pytest.mark.parametrize("text", ["", "[]", '{"plan": {}}', "x" * 999_999])
def test_a_task_that_is_none_ends_the_pod_for_good(cluster: Cluster, text: str) -> None:
    pod = cluster.pod(JobRole.SEARCH, task=text)
    assert pod.run() == 3
    assert pod.message["exit_code"] == 3
    assert pod.left == []
    assert cluster.results() == ()
    assert set(cluster.ledger.lost(cluster.experiment()).values()) == {"results-absent"}


def test_a_pod_without_a_compiler_says_so_for_good(cluster: Cluster) -> None:
    pod = cluster.pod(JobRole.SEARCH)
    assert pod.run(PATH="/nowhere") == 4
    assert pod.message["code"] == "missing-dependency"
    assert pod.left == []
    assert 4 in FINAL_EXIT_CODES


def test_a_lab_that_fails_is_no_result(cluster: Cluster) -> None:
    task = cluster.handing(variant("fine"), incumbent="sha256:" + "0" * 64)
    pod = cluster.pod(JobRole.VERIFY, task=task)
    assert pod.run() == 5
    assert pod.message["code"] == "harness-failed"
    assert json.loads(pod.stdout.splitlines()[-1])["failed"]["code"] == "harness-failed"
    assert pod.left == []
    assert 5 not in FINAL_EXIT_CODES


@pytest.mark.slow
def test_an_incumbent_that_does_not_compile_is_a_compile_error(cluster: Cluster) -> None:
    broken = variant("broken", old="float sum", new="flaot sum")
    task = cluster.handing(broken, variant("fine"), incumbent=broken.digest)
    pod = cluster.pod(JobRole.SEARCH, task=task)
    assert pod.run() == COMPILE_ERROR
    assert pod.left == []


@pytest.mark.parametrize("role", ["linking", "", "SEARCH"])
def test_a_role_of_another_program_is_wrong_usage(cluster: Cluster, role: str) -> None:
    pod = cluster.pod(JobRole.SEARCH)
    assert pod.run(RETUNED_ROLE=role) == 2
    assert "RETUNED_ROLE" in json.loads(pod.stdout)["failed"]["message"]
    assert pod.left == []


@pytest.mark.slow
def test_a_pod_is_behind_walls_in_these_tests_as_well(cluster: Cluster) -> None:
    pod = cluster.pod(JobRole.SEARCH)
    outside = cluster.place / "outside"
    outside.mkdir(mode=0o777)
    code = pod.run(RETUNED_RESULTS_DIR=str(outside))
    if landlock.version() >= 2:
        assert code == 5
        assert "cannot be written" in pod.message["message"]
    assert pod.left == []


@pytest.mark.slow
@pytest.mark.parametrize("role", [JobRole.SEARCH, JobRole.VERIFY])
def test_a_pod_that_is_told_to_end_ends_in_time_and_leaves_nothing(
    cluster: Cluster, role: JobRole
) -> None:
    task = cluster.handing(variant("fine"), variant("again", again=2))
    pod = cluster.pod(role, task=task)
    with pod.start() as child:
        assert child.stderr is not None
        _wait_for(lambda: any((pod.work).rglob("compiled")), child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=150.0) == PREEMPTED
    assert PREEMPTED not in FINAL_EXIT_CODES
    assert pod.message["code"] == "preempted"
    assert pod.message["plan"] == cluster.experiment().spec.plan
    assert pod.left == []
    assert cluster.results() == ()
    assert set(cluster.ledger.lost(cluster.experiment()).values()) == {"results-absent"}


def _wait_for(seen: Callable[[], bool], child: Any) -> None:
    """Wait until something is to be seen of a child that lives."""
    until = time.monotonic() + 150.0
    while not seen():
        assert child.poll() is None, "it ended before that"
        assert time.monotonic() < until, "nothing was to be seen"
        time.sleep(0.02)
