"""What happens to experiments in a whole cluster: budgets, disruption, aborts, other namespaces."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory_server import pod_of
from tests.operators.controllers.server_pods import WORLD

from retuned.api.values import camel
from retuned.errors import Refused
from retuned_operator.controllers.experiment import Experiments
from retuned_operator.controllers.experiment_facts import PROPOSAL_TTL, hours_of
from retuned_operator.kube.resources import (
    CONFIG_MAPS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    PROPOSALS,
    Obj,
)
from retuned_operator.manifests import JobSettings, ServerImage
from retuned_operator.manifests.settings import Endpoint
from retuned_operator.schema import ExperimentPhase as P
from retuned_operator.schema import JobRole, KernelExperiment

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
HERE = JobSettings(image="lab", gpu_models={"MI300X": {"model": "MI300X"}})
ELSEWHERE = replace(HERE, namespace="lab")


class Idle(Cluster):
    """A cluster whose Jobs do not get anywhere by themselves, and begin with the search."""

    def __init__(
        self, now: datetime, *, jobs: JobSettings | None = None, compile_first: bool = False
    ) -> None:
        super().__init__(now, jobs=replace(jobs or HERE, compile_first=compile_first))

    def work(self) -> None:
        pass


def running(cluster: Cluster) -> list[str]:
    return [
        body["metadata"]["name"]
        for body in cluster.all(JOBS)
        if not body["spec"]["suspend"] and not body.get("status", {}).get("conditions")
    ]


def phases(cluster: Cluster) -> list[P]:
    return [each.status.phase for each in cluster.experiments()]


def another(cluster: Cluster, name: str) -> None:
    body = examples.an_experiment(environment=WORLD, plan="sha256:" + "7" * 64)
    body["metadata"]["name"] = name
    cluster.put(EXPERIMENTS, body)


@pytest.mark.parametrize("compile_first", [False, True])
def test_experiments_of_one_policy_run_one_after_the_other(compile_first: bool) -> None:
    cluster = Idle(OPEN, compile_first=compile_first)
    cluster.experiment()
    another(cluster, "exp-2")
    for _ in range(8):
        cluster.turn()
        assert len(running(cluster)) <= 1
    assert phases(cluster) == [P.RUNNING, P.QUEUED]
    cluster.change(EXPERIMENTS, "exp-1", {"spec": {"abort": {"requested": True}}})
    cluster.until(lambda: phases(cluster) == [P.ABORTED, P.RUNNING])
    assert len(cluster.all(JOBS)) == 1


def test_an_experiment_that_has_begun_comes_to_its_end_before_another_begins() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    another(cluster, "exp-2")
    begun: list[set[str]] = []

    def over() -> bool:
        open_ones = [e for e in cluster.experiments() if not e.status.phase.is_terminal]
        measured = {e.metadata.name for e in open_ones if any(r.result for r in e.status.job_refs)}
        begun.append(measured)
        return not open_ones

    cluster.until(over)
    assert {"exp-1"} in begun
    assert all(len(each) <= 1 for each in begun)


def test_an_experiment_whose_node_is_away_keeps_no_other_from_its_turn() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    another(cluster, "exp-2")
    cluster.turn()
    (controller,) = (c for _, c in cluster.operator.controllers if isinstance(c, Experiments))
    asked, answered = threading.Event(), threading.Event()

    def collecting(experiment: KernelExperiment) -> None:
        if experiment.metadata.name == "exp-1":
            asked.set()
            assert answered.wait(120)

    cluster.ledger.collecting = collecting
    waits, goes_on = (
        threading.Thread(target=controller.reconcile, args=(f"serving/exp-{n}",)) for n in (1, 2)
    )
    waits.start()
    assert asked.wait(60)
    goes_on.start()
    goes_on.join(60)
    assert waits.is_alive()
    assert not goes_on.is_alive()
    answered.set()
    waits.join(60)
    assert not waits.is_alive()


def test_a_days_budget_of_device_time_holds_the_next_experiment() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    cluster.clock.advance(5 * 3600.0)
    cluster.change(EXPERIMENTS, "exp-1", {"spec": {"abort": {"requested": True}}})
    cluster.until(lambda: phases(cluster) == [P.ABORTED])
    another(cluster, "exp-2")
    for _ in range(4):
        cluster.turn()
    assert cluster.experiments()[1].status.reason == "budget-spent"
    cluster.clock.advance(25 * 3600.0)
    cluster.until(lambda: phases(cluster)[1] is P.RUNNING)


def test_an_alert_on_the_service_level_stops_an_experiment_and_its_end_lets_it_go_on() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    cluster.signals.firing = True
    cluster.until(lambda: running(cluster) == [])
    cluster.signals.firing = None
    for _ in range(3):
        cluster.turn()
    assert running(cluster) == []
    cluster.signals.firing = False
    cluster.until(lambda: len(running(cluster)) == 1)


def test_a_pod_that_production_took_away_is_tried_again_and_is_no_failure() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    (job,) = cluster.all(JOBS)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    cluster.pod_is(pod_of(job), {"phase": "Failed", "conditions": [condition]})
    cluster.until(
        lambda: cluster.experiments()[0].status.preemptions == 1 and phases(cluster) == [P.RUNNING]
    )
    (again,) = cluster.all(JOBS)
    assert again["metadata"]["name"] != job["metadata"]["name"]
    assert again["metadata"]["labels"]["retuned.dev/attempt"] == "2"


def test_a_job_that_failed_ends_its_experiment() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    cluster.finish(cluster.all(JOBS)[0]["metadata"]["name"], type="Failed")
    cluster.until(lambda: phases(cluster) == [P.FAILED])


OOM = {"exitCode": 137, "reason": "OOMKilled"}
TOLD = {"exitCode": 3, "reason": "Error"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"terminated": OOM}, "OOMKilled with code 137"),
        (
            {
                "terminated": TOLD
                | {"message": '{"code":"bad-task","message":"no\\u001b[31m plan"}'}
            },
            "Error with code 3: bad-task: no [31m plan",
        ),
        ({"terminated": TOLD | {"message": "\x1b[2J"}}, "Error with code 3"),
        ({"terminated": TOLD | {"message": "[" * 4000}}, "Error with code 3"),
        ({"terminated": TOLD | {"message": '"text"'}}, "Error with code 3"),
        ({"terminated": TOLD | {"message": '{"code":"' + "x" * 3000 + '"}'}}, "xxxxxx"),
    ],
)
def test_an_experiment_whose_job_failed_says_what_its_pod_says(status: Obj, said: str) -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    (job,) = cluster.all(JOBS)
    found = {"phase": "Failed", "containerStatuses": [{"name": "runner", "state": status}]}
    cluster.pod_is(pod_of(job), found)
    cluster.finish(job["metadata"]["name"], type="Failed")
    cluster.until(lambda: phases(cluster) == [P.FAILED])
    detail = cluster.experiments()[0].status.detail
    assert said in detail
    assert detail.isprintable()
    assert len(detail) < 1200


def test_an_experiment_that_is_deleted_leaves_nothing_in_another_namespace() -> None:
    cluster = Idle(OPEN, jobs=ELSEWHERE)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    (job,) = cluster.all(JOBS)
    assert job["metadata"]["namespace"] == "lab"
    assert "ownerReferences" not in job["metadata"]
    cluster.remove(EXPERIMENTS, "exp-1")
    cluster.operator.sync()
    with cluster.virtual_time():
        cluster.operator.controllers[4][1].reconcile("serving/exp-1")
    assert cluster.all(JOBS) == []
    assert cluster.all(CONFIG_MAPS) == []


def test_an_experiment_that_is_over_leaves_no_task_behind() -> None:
    cluster = Cluster(OPEN, jobs=ELSEWHERE)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    cluster.turn()
    assert cluster.all(CONFIG_MAPS) == []


@pytest.mark.parametrize("store", ["jobs", "pods", "kernelexperiments"])
def test_while_the_cluster_is_not_known_nothing_is_made(store: str) -> None:
    cluster = Idle(OPEN)
    cluster.operator.world.caches._current = lambda plural: plural != store  # type: ignore[attr-defined]
    cluster.experiment()
    for _ in range(4):
        cluster.turn()
    assert cluster.all(JOBS) == []


def test_a_win_that_was_decided_on_before_is_not_proposed_again() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    another(cluster, "exp-2")
    cluster.until(lambda: phases(cluster)[1].is_terminal)
    assert cluster.experiments()[1].status.reason == "already-decided"
    assert len(cluster.all(PROPOSALS)) == 1


def test_a_proposal_expires_when_the_gate_of_its_policy_has_it_expire() -> None:
    cluster = Cluster(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    (proposal,) = (each.stage_proposal() for each in cluster.proposals())
    assert proposal.expires_at - proposal.created_at == timedelta(hours=48)
    assert timedelta(hours=48) < PROPOSAL_TTL, "it would have had longer"


class Compiling(Cluster):
    """A cluster in which pods that compile do as the test says."""

    ends = "Complete"

    def finish(self, name: str, *, namespace: str | None = None, type: str = "Complete") -> None:
        compiles = name.startswith("compile")
        if compiles and self.ends == "Failed":
            self.ledger.found = [each for each in self.ledger.found if each.job != name]
        super().finish(name, namespace=namespace, type=self.ends if compiles else type)


@pytest.mark.parametrize("ends", ["Complete", "Failed"])
def test_a_pod_that_compiles_helps_the_search_and_never_stands_in_its_way(ends: str) -> None:
    cluster = Compiling(OPEN)
    cluster.ends = ends
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    roles = ["compile", "search", "verify"]
    (experiment,) = cluster.experiments()
    assert [str(ref.role) for ref in experiment.status.job_refs] == roles
    assert [str(role) for _, role, _ in cluster.ledger.tasks] == roles
    assert {arch for _, _, arch in cluster.ledger.tasks} == {"gfx942"}  # as the sidecars say
    without = cluster.events("WentOnWithout")
    assert len(without) == (ends == "Failed")
    assert all(note.startswith("goes on without compile: job-failed") for note in without)
    assert all(body["spec"]["suspend"] is False for body in cluster.all(JOBS))


def deadline_of(job: Obj) -> int:
    assert "activeDeadlineSeconds" not in job["spec"], "waiting for room would count"
    deadline_s: int = job["spec"]["template"]["spec"]["activeDeadlineSeconds"]
    return deadline_s


MODEL = Endpoint(
    cidr="203.0.113.7/32",
    url="https://models.example.org/v1",
    model="m",
    prompt_usd_per_mtok=0.0,
    completion_usd_per_mtok=0.0,
)


@pytest.mark.parametrize("asked", [True, False])
def test_a_model_is_asked_first_where_the_plan_names_it_and_there_is_one(asked: bool) -> None:
    cluster = Cluster(OPEN, jobs=replace(HERE, endpoint=MODEL if asked else None))
    body = examples.an_experiment(
        environment=WORLD, search={"generators": ["search", "evolve"], "structures": []}
    )
    cluster.put(EXPERIMENTS, body)
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    roles = ["generate", "compile", "search", "verify"]
    assert [str(role) for _, role, _ in cluster.ledger.tasks] == roles[0 if asked else 1 :]
    deadlines = {
        body["metadata"]["labels"]["retuned.dev/role"]: deadline_of(body)
        for body in cluster.all(JOBS)
    }
    assert deadlines.get("generate", 1020) == 1020


def test_where_no_accelerator_is_asked_for_nobody_compiles_beforehand() -> None:
    cluster = Cluster(OPEN, jobs=replace(HERE, compile_first=False))
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    assert [str(role) for _, role, _ in cluster.ledger.tasks] == ["search", "verify"]


TUNABLE = "tunable:attention:kernel_unified_attention:0a1b2c3d"
SERVED = ServerImage(image="registry.example/vllm@sha256:" + "a" * 64, python="/usr/bin/python3")


def a_tunable(cluster: Cluster) -> None:
    body = examples.an_experiment(environment=WORLD)
    body["spec"]["kernel"]["name"] = TUNABLE
    cluster.ledger.servers[TUNABLE] = SERVED
    cluster.put(EXPERIMENTS, body)


def test_an_experiment_on_a_tunable_has_one_job_beside_the_servers_container() -> None:
    cluster = Idle(OPEN, jobs=replace(HERE, endpoint=MODEL), compile_first=True)
    a_tunable(cluster)
    cluster.turn()
    assert [role for _, role, _ in cluster.ledger.tasks] == [JobRole.VERIFY]
    (job,) = cluster.all(JOBS)
    containers = job["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in containers] == ["server", "runner"]
    assert containers[0]["image"] == SERVED.image


def test_a_tunable_that_can_get_no_container_is_refused_with_the_reason() -> None:
    cluster = Idle(OPEN)

    with pytest.raises(Refused) as unpinned:
        replace(SERVED, image="vllm:latest")
    a_tunable(cluster)
    cluster.ledger.servers[TUNABLE] = unpinned.value
    cluster.until(lambda: phases(cluster) == [P.REFUSED])
    (experiment,) = cluster.experiments()
    assert experiment.status.reason == "server-image-invalid"
    assert "vllm:latest" in experiment.status.detail
    assert cluster.all(JOBS) == []


UNPLACED = [
    (replace(HERE, gpu_models={}), "gpu-model-unknown", "experiments.gpuModels"),
    (replace(HERE, gpu_resources={}), "gpu-resource-unknown", "experiments.gpuResources.amd"),
]


@pytest.mark.parametrize(("jobs", "code", "value"), UNPLACED)
def test_an_experiment_that_no_node_is_known_for_ends_and_says_which_value_to_set(
    jobs: JobSettings, code: str, value: str
) -> None:
    cluster = Idle(OPEN, jobs=jobs, compile_first=True)
    cluster.experiment()
    for _ in range(3):
        cluster.turn()
    (experiment,) = cluster.experiments()
    assert (experiment.status.phase, experiment.status.reason) == (P.REFUSED, code)
    assert value in experiment.status.detail
    assert cluster.all(JOBS) == cluster.all(CONFIG_MAPS) == []  # nobody compiles in vain
    assert cluster.events("Queued") == []
    (note,) = cluster.events("Refused")
    assert value in note
    (place,) = [c for c in cluster.target().status.conditions if c.type == "ExperimentsPlaceable"]
    assert (place.status, place.reason) == ("False", camel(code))
    assert value in place.message
    assert cluster.operator.errors == []


def test_what_was_refused_for_settings_is_asked_for_once_more_when_they_are_mended() -> None:
    cluster = Cluster(OPEN, jobs=replace(HERE, gpu_models={}))
    cluster.experiment()
    for _ in range(4):
        cluster.turn()
    assert phases(cluster) == [P.REFUSED]
    cluster.jobs = HERE
    cluster.restart()
    cluster.until(lambda: P.SUCCEEDED in phases(cluster))
    for _ in range(4):
        cluster.turn()
    assert sorted(phases(cluster)) == [P.REFUSED, P.SUCCEEDED]
    refused = next(e for e in cluster.experiments() if e.status.phase is P.REFUSED)
    (again,) = [c for c in refused.status.conditions if c.type == "AskedAgain"]
    won = next(e for e in cluster.experiments() if e.status.phase is P.SUCCEEDED)
    assert again.message == f"asked for again as {won.metadata.name}"
    assert won.spec.plan == refused.spec.plan
    places = [
        c.status for c in cluster.target().status.conditions if c.type == "ExperimentsPlaceable"
    ]
    assert places == ["True"]


def test_a_task_that_no_config_map_holds_ends_its_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Idle(OPEN)
    monkeypatch.setattr(cluster.ledger, "task", lambda *_, **__: "x" * 1_000_001)
    cluster.experiment()
    for _ in range(3):
        cluster.turn()
    (experiment,) = cluster.experiments()
    assert (experiment.status.phase, experiment.status.reason) == (P.REFUSED, "task-too-large")
    assert "1000001 bytes" in experiment.status.detail
    assert cluster.all(JOBS) == []
    assert cluster.operator.errors == []


def cost_s(cluster: Cluster) -> float:
    (experiment,) = cluster.experiments()
    return 3600.0 * hours_of(experiment, now=cluster.clock.now())


def test_while_production_holds_every_accelerator_an_experiment_waits_at_no_cost() -> None:
    cluster = Idle(OPEN)
    cluster.full = True
    cluster.experiment()
    reasons = set()
    for _ in range(60):  # far beyond any deadline, and a day's budget
        cluster.turn(seconds=480.0)
        reasons.add(cluster.experiments()[0].status.reason)
    (experiment,) = cluster.experiments()
    assert experiment.status.phase is P.QUEUED
    assert reasons == {"job-made", "released", "waits-for-room", "no-room"}
    assert "Insufficient amd.com/gpu" in experiment.status.detail
    assert experiment.status.started_at is None
    assert cost_s(cluster) == 0.0
    assert cluster.telemetry.total("retuned_experiments_started_total") == 0
    assert len(cluster.all(JOBS)) == 1
    cluster.full = False
    cluster.until(lambda: phases(cluster) == [P.RUNNING])


def test_an_experiment_without_room_makes_way_for_another() -> None:
    cluster = Idle(OPEN)
    cluster.full = True
    cluster.experiment()
    another(cluster, "exp-2")
    let_go: set[str] = set()
    for _ in range(120):
        cluster.turn()
        now = running(cluster)
        assert len(now) <= 1
        let_go.update(now)
    assert len(let_go) == 2


def test_a_pod_that_a_node_has_taken_is_not_held_back_and_says_what_it_waits_for() -> None:
    cluster = Idle(OPEN)
    cluster.full = True
    cluster.experiment()
    cluster.until(lambda: cluster.experiments()[0].status.reason == "waits-for-room")
    (job,) = cluster.all(JOBS)
    cluster.change(PODS, f"{job['metadata']['name']}-x", {"spec": {"nodeName": "node-1"}})
    waits = {"reason": "ImagePullBackOff", "message": "no such\u001b[2J image"}
    placed = {"type": "PodScheduled", "status": "True"}
    cluster.pod_is(
        pod_of(job),
        {
            "conditions": [placed],
            "containerStatuses": [{"name": "runner", "state": {"waiting": waits}}],
        },
    )
    for _ in range(60):
        cluster.turn()
    (experiment,) = cluster.experiments()
    assert (experiment.status.phase, experiment.status.reason) == (P.QUEUED, "starting")
    assert experiment.status.detail == "ImagePullBackOff: no such [2J image"
    assert running(cluster) == [job["metadata"]["name"]]
    assert cost_s(cluster) == 0.0


def test_a_freeze_of_hours_costs_no_device_time() -> None:
    cluster = Idle(OPEN)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.RUNNING])
    for _ in range(4):
        cluster.turn(seconds=60.0)
    cluster.freeze()
    cluster.turn()
    cluster.turn()
    before_s = cost_s(cluster)
    assert 240.0 <= before_s <= 330.0
    cluster.clock.advance(5 * 3600.0)
    cluster.turn()
    assert cost_s(cluster) == before_s
    cluster.remove(FREEZES, "stop", namespace="")
    cluster.until(lambda: phases(cluster) == [P.RUNNING])  # its day's budget is not spent
    cluster.change(EXPERIMENTS, "exp-1", {"spec": {"abort": {"requested": True}}})
    cluster.until(lambda: phases(cluster) == [P.ABORTED])
    (experiment,) = cluster.experiments()
    assert all(each.ended_at is not None for each in experiment.status.device_time)
    counted_s = cluster.telemetry.total("retuned_experiment_gpu_seconds_total")
    assert before_s <= counted_s <= before_s + 120.0


def test_what_ran_while_no_operator_was_there_costs_what_its_pod_says() -> None:
    cluster = Idle(OPEN)
    cluster.full = True
    cluster.experiment()
    cluster.until(lambda: cluster.experiments()[0].status.reason == "waits-for-room")
    (job,) = cluster.all(JOBS)
    begin = cluster.clock.now()
    ended = {
        "exitCode": 0,
        "startedAt": (begin + timedelta(minutes=5)).isoformat(),
        "finishedAt": (begin + timedelta(minutes=12)).isoformat(),
    }
    cluster.clock.advance(3600.0)
    cluster.pod_is(
        pod_of(job),
        {
            "phase": "Succeeded",
            "conditions": [],
            "containerStatuses": [{"name": "runner", "state": {"terminated": ended}}],
        },
    )
    cluster.finish(job["metadata"]["name"])
    cluster.turn()
    cluster.turn()
    assert cost_s(cluster) == 420.0


def test_the_task_of_the_trusted_job_is_made_of_the_results_that_count_as_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(OPEN)
    ask, told = cluster.ledger.task, {}

    def task(experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        told[str(role)] = [str(r.role) for r in experiment.status.job_refs if r.result]
        return ask(experiment, role, arch=arch)

    monkeypatch.setattr(cluster.ledger, "task", task)
    cluster.experiment()
    cluster.until(lambda: phases(cluster) == [P.SUCCEEDED])
    assert told == {"compile": [], "search": ["compile"], "verify": ["compile", "search"]}
