"""Jobs of experiments on a real node: they compile and time, and are put off without failing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.cluster import MODEL, NODE, Cluster
from tests.cluster.conftest import TAG
from tests.cluster.serving import image

from retuned import catalog
from retuned.api.experiment import JobRole
from retuned.api.target import Vendor
from retuned.contract import Workload
from retuned.experiment.messages import FindingRecord
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned_operator.controllers.experiment_facts import job_fact, with_why
from retuned_operator.manifests import (
    JobRequest,
    JobSettings,
    Size,
    experiment_namespace,
    job_objects,
    network_policies,
    priority_class,
    quota,
)
from retuned_operator.manifests.jobs import RUNNER, WORK_DIR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMESPACE = "experiments-alone"
DEFINITION = "softmax_n32"
SETTINGS = JobSettings(
    image=image("experiment", TAG),
    namespace=NAMESPACE,
    pull_policy="Never",
    gpu_models={"MI300X": MODEL},
    sizes={role: Size(cpu="500m", memory="1Gi", work="1Gi") for role in JobRole},
)
ENDED = ("Complete", "Failed")
GO_ON = f"{WORK_DIR}/go-on"
"""File that lets a pod that waits for it go on."""


@pytest.fixture(scope="module", autouse=True)
def walls(cluster: Cluster) -> Iterator[None]:
    made = [
        experiment_namespace(NAMESPACE),
        priority_class(SETTINGS.priority_class),
        quota(
            NAMESPACE,
            priority=SETTINGS.priority_class,
            gpu_resources=["amd.com/gpu"],
            max_gpus=4,
            max_pods=8,
        ),
        *network_policies(NAMESPACE, endpoint=None),
    ]
    cluster.kubectl("apply", "-f", "-", given=made)
    yield
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    cluster.kubectl("delete", "priorityclass", SETTINGS.priority_class)


@pytest.fixture(scope="module")
def environment(cluster: Cluster) -> str:
    """Return the digest of what a pod compiles with, as a pod says it."""
    text = "from retuned.lab.languages.cpu_cpp import cpu_environment as e; print(e().digest)"
    request = wanted("environment", task="{}")
    _, job = job_objects(request, SETTINGS)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["command"] = ["python", "-c", text]
    start(cluster, request, job)
    assert ending(cluster, request) == "Complete"
    return log(cluster, request).strip()


def wanted(uid: str, *, task: str, attempt: int = 1, deadline_s: int = 900) -> JobRequest:
    return JobRequest(
        role=JobRole.SEARCH,
        experiment=f"exp-{uid}",
        experiment_uid=uid,
        experiment_namespace="serving",
        attempt=attempt,
        task=task,
        vendor=Vendor.AMD,
        model="MI300X",
        deadline_s=deadline_s,
    )


def waiting(seconds: int) -> list[str]:
    """Return a command that only waits, for tests of what happens meanwhile."""
    return ["python", "-c", f"import time; time.sleep({seconds})"]


def waiting_to_go_on(then: str = "") -> list[str]:
    """Return a command that waits until it is let go on, or is told to end."""
    text = (
        "import os, signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(143))\n"
        f"while not os.path.exists({GO_ON!r}): time.sleep(0.1)\n"
    )
    return ["python", "-c", text + then]


def go_on(cluster: Cluster, pod: str) -> None:
    """Let a pod go on that waits for it."""
    cluster.kubectl("exec", "-n", NAMESPACE, pod, "-c", RUNNER, "--", "touch", GO_ON)


def start(cluster: Cluster, request: JobRequest, job: dict[str, Any]) -> None:
    task_map, _ = job_objects(request, SETTINGS)
    cluster.kubectl("apply", "-f", "-", given=[task_map, job])
    release = json.dumps({"spec": {"suspend": False}})
    cluster.kubectl("patch", "job", request.name, "-n", NAMESPACE, "-p", release)


def started(cluster: Cluster, request: JobRequest, command: list[str]) -> None:
    """Start a Job whose pod does something else than its task."""
    _, job = job_objects(request, SETTINGS)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["command"] = command
    start(cluster, request, job)


def running(cluster: Cluster, request: JobRequest, *, but: str = "") -> str:
    """Wait until a pod of a Job runs, other than one, and return its name."""
    found: list[str] = []

    def runs() -> bool:
        found[:] = [
            pod["metadata"]["name"]
            for pod in pods(cluster, request)
            if pod["status"]["phase"] == "Running" and pod["metadata"]["name"] != but
        ]
        return bool(found)

    cluster.eventually(runs, f"{request.name} runs")
    return found[0]


def pods(cluster: Cluster, request: JobRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(
        "pods", "-n", NAMESPACE, "-l", f"job-name={request.name}"
    )["items"]
    return found


def conditions(cluster: Cluster, request: JobRequest) -> dict[str, dict[str, Any]]:
    status = cluster.get("job", request.name, "-n", NAMESPACE)["status"]
    return {each["type"]: each for each in status.get("conditions", ()) if each["status"] == "True"}


def ending(cluster: Cluster, request: JobRequest, *, within_s: float = 900) -> str:
    """Return how a Job ended."""
    cluster.eventually(
        lambda: bool(conditions(cluster, request).keys() & set(ENDED)),
        f"{request.name} ends",
        within_s=within_s,
    )
    (how,) = conditions(cluster, request).keys() & set(ENDED)
    return how


def log(cluster: Cluster, request: JobRequest) -> str:
    return cluster.kubectl("logs", "-n", NAMESPACE, f"job/{request.name}")


def test_a_job_is_held_until_it_is_released(cluster: Cluster) -> None:
    request = wanted("held", task="{}")
    cluster.kubectl("apply", "-f", "-", given=list(job_objects(request, SETTINGS)))
    cluster.eventually(lambda: "Suspended" in conditions(cluster, request), "it is suspended")
    assert pods(cluster, request) == []


def test_a_search_compiles_and_times_variants_behind_all_the_walls(
    cluster: Cluster, environment: str
) -> None:
    plan = ExperimentPlan(
        id="on-a-node",
        hypothesis="h",
        definition=DEFINITION,
        workloads=(Workload(definition=DEFINITION, axes={"M": 8}),),
        incumbent=catalog.get(DEFINITION).incumbent.digest,
        budget=Budget(max_candidates=2, max_seconds=300.0, finalists=1),
        environment=environment,
    )
    task = {"plan": plan.model_dump(mode="json"), "root": WORK_DIR}
    request = wanted("search", task=json.dumps(task))
    start(cluster, request, job_objects(request, SETTINGS)[1])
    assert ending(cluster, request) == "Complete", log(cluster, request)
    *lines, last = [json.loads(line) for line in log(cluster, request).splitlines()]
    assert last == {"done": True}
    found = [FindingRecord.model_validate(line["finding"]) for line in lines]
    assert len(found) == 2
    (pod,) = pods(cluster, request)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1"
    assert pod["spec"]["nodeName"] == NODE


def test_a_task_that_is_none_fails_at_once_and_for_good(cluster: Cluster) -> None:
    request = wanted("no-task", task="{}")
    start(cluster, request, job_objects(request, SETTINGS)[1])
    assert ending(cluster, request) == "Failed"
    assert conditions(cluster, request)["Failed"]["reason"] == "PodFailurePolicy"
    assert len(pods(cluster, request)) == 1


def test_a_pod_without_memory_is_a_failure_and_is_not_tried_again(cluster: Cluster) -> None:
    request = wanted("memory", task="{}")
    started(cluster, request, waiting_to_go_on("x = b'1' * (3 << 30)"))
    go_on(cluster, running(cluster, request))
    assert ending(cluster, request) == "Failed"
    failed = job_fact(cluster.get("job", request.name, "-n", NAMESPACE))
    assert failed is not None
    told = with_why(failed, pods(cluster, request), container=RUNNER)
    assert told.reason.endswith("OOMKilled with code 137")


def test_a_pod_past_its_deadline_is_ended(cluster: Cluster) -> None:
    request = wanted("deadline", task="{}", deadline_s=5)
    started(cluster, request, waiting(600))
    assert ending(cluster, request) == "Failed"
    (pod,) = pods(cluster, request)
    assert pod["status"]["reason"] == "DeadlineExceeded"


def test_a_pod_that_was_evicted_is_replaced_and_has_not_failed(cluster: Cluster) -> None:
    request = wanted("evicted", task="{}")
    started(cluster, request, waiting_to_go_on())
    first = running(cluster, request)
    cluster.evict(first, namespace=NAMESPACE)
    go_on(cluster, running(cluster, request, but=first))
    assert ending(cluster, request) == "Complete"


def test_on_a_node_that_is_cordoned_a_job_waits_and_then_runs(cluster: Cluster) -> None:
    request = wanted("cordoned", task="{}")
    _, job = job_objects(request, SETTINGS)
    job["spec"]["template"]["spec"]["containers"][0]["command"] = waiting(1)
    with cluster.cordoned(NODE):
        start(cluster, request, job)
        cluster.eventually(lambda: bool(pods(cluster, request)), "the pod is made")

        def refused() -> bool:
            (pod,) = pods(cluster, request)
            found = pod["status"].get("conditions", ())
            return any(each.get("reason") == "Unschedulable" for each in found)

        cluster.eventually(refused, "the scheduler finds no node")
    assert ending(cluster, request) == "Complete"
