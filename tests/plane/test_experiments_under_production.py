"""An experiment's Jobs beside production, on nodes with accelerators that exist only in the store.

The scheduler, the Job controller and the admission of pods are Kubernetes' own; only the kubelet is
played.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import eventually, real_api

from retuned.api.target import Vendor
from retuned.control import JobFact, JobState
from retuned_operator.controllers import experiment_facts
from retuned_operator.kube.client import Api
from retuned_operator.kube.resources import CONFIG_MAPS, JOBS, NODES, PODS, Obj
from retuned_operator.manifests import (
    JobRequest,
    JobSettings,
    experiment_namespace,
    job_objects,
    network_policies,
    priority_class,
    quota,
)
from retuned_operator.manifests.jobs import RUNNER
from retuned_operator.schema import JobRole

pytestmark = pytest.mark.plane

CLASS = "retuned-experiment"
RESOURCE = "amd.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One node with one accelerator, and a namespace for experiments on it."""

    api: Api
    name: str
    """Of node and namespace."""

    def job(self, *, outcome: str = "", exit_code: str = "", deadline_s: int = 1800) -> Obj:
        """Make a Job of an experiment, released at once, and return it."""
        request = JobRequest(
            role=JobRole.SEARCH,
            experiment="exp-1",
            experiment_uid=f"uid-{self.name}",
            experiment_namespace="serving",
            attempt=1,
            task=json.dumps({"plan": {}}),
            vendor=Vendor.AMD,
            model="MI300X",
            deadline_s=deadline_s,
        )
        settings = JobSettings(
            image="nothing/runs:here",
            namespace=self.name,
            gpu_models={"MI300X": {"tests/pool": self.name}},
        )
        task, job = job_objects(request, settings)
        asked = {"tests/outcome": outcome, "tests/exit-code": exit_code}
        job["spec"]["template"]["metadata"]["annotations"] = {k: v for k, v in asked.items() if v}
        self.api.create(CONFIG_MAPS, task)
        self.api.create(JOBS, job)
        change = {"spec": {"suspend": False}}
        return self.api.patch(JOBS, request.name, change=change, namespace=self.name)

    def pods(self, job: Obj) -> list[Obj]:
        labels = f"job-name={job['metadata']['name']}"
        return list(self.api.list(PODS, namespace=self.name, labels=labels).items)

    def running(self, job: Obj) -> Obj | None:
        pods = [p for p in self.pods(job) if p.get("status", {}).get("phase") == "Running"]
        return pods[0] if pods else None

    def seen(self, job: Obj) -> JobFact:
        """Return the Job as the operator sees it."""
        body = self.api.get(JOBS, job["metadata"]["name"], namespace=self.name)
        fact = experiment_facts.job_fact(body)
        assert fact is not None
        return experiment_facts.with_pods(fact, self.pods(job), container=RUNNER)

    def ended(self, job: Obj) -> dict[str, str]:
        """Return the conditions that are true, with their reasons."""
        found = self.api.get(JOBS, job["metadata"]["name"], namespace=self.name)
        conditions = found.get("status", {}).get("conditions") or ()
        return {e["type"]: e.get("reason", "") for e in conditions if e["status"] == "True"}

    def serve(self, name: str) -> Obj:
        """Make a server's pod, with the priority that every pod has."""
        container = {
            "name": "server",
            "image": "nothing/runs:here",
            "resources": {"limits": {RESOURCE: "1"}},
        }
        spec = {"containers": [container], "nodeSelector": {"tests/pool": self.name}}
        metadata = {"name": f"{name}-{self.name}", "namespace": "default"}
        return self.api.create(PODS, {"metadata": metadata, "spec": spec})

    def place(self, pod: Obj) -> str:
        """Return the node of a pod that runs; empty while it does not."""
        metadata = pod["metadata"]
        found = self.api.get(PODS, metadata["name"], namespace=metadata["namespace"])
        runs = found.get("status", {}).get("phase") == "Running"
        return str(found["spec"].get("nodeName", "")) if runs else ""


@pytest.fixture
def pool(plane: ControlPlane, admin: Path) -> Iterator[Pool]:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    objects: list[dict[str, Any]] = [
        priority_class(CLASS),
        experiment_namespace(name),
        quota(name, priority=CLASS, gpu_resources=[RESOURCE], max_gpus=2),
        *network_policies(name, endpoint=None),
    ]
    plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=yaml.safe_dump_all(objects))
    api = real_api(plane)
    offers = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    offers[RESOURCE] = "1"
    node = {"metadata": {"name": name, "labels": {"tests/pool": name}}}
    api.create(NODES, node | {"status": {"allocatable": offers, "capacity": offers}})
    yield Pool(api=api, name=name)
    api.delete(NODES, name)
    api.close()


def test_production_takes_the_accelerator_and_the_experiment_waits_and_goes_on(
    pool: Pool,
) -> None:
    job = pool.job(outcome="stays")
    first = eventually(lambda: pool.running(job))
    assert first["spec"]["priority"] == -100
    server = pool.serve("server")
    eventually(lambda: pool.place(server) == pool.name)
    assert pool.running(job) is None
    waiting = eventually(
        lambda: [p for p in pool.pods(job) if p["metadata"]["uid"] != first["metadata"]["uid"]]
    )
    assert "nodeName" not in waiting[0]["spec"]
    assert "Failed" not in pool.ended(job)  # it was disrupted; it did not fail
    pool.api.delete(PODS, server["metadata"]["name"], namespace="default")
    second = eventually(lambda: pool.running(job))
    assert second["metadata"]["uid"] == waiting[0]["metadata"]["uid"]


def test_an_experiment_takes_nothing_from_anybody(pool: Pool) -> None:
    server = pool.serve("server")
    eventually(lambda: pool.place(server) == pool.name)
    job = pool.job()
    pending = eventually(lambda: pool.pods(job))
    eventually(lambda: _unschedulable(pool.pods(job)[0]))
    assert pool.place(server) == pool.name
    assert "nominatedNodeName" not in pending[0].get("status", {})
    pool.api.delete(PODS, server["metadata"]["name"], namespace="default")
    eventually(lambda: "Complete" in pool.ended(job))


def test_a_pod_that_no_node_takes_waits_beyond_its_deadline_and_has_not_failed(
    pool: Pool,
) -> None:
    server = pool.serve("server")
    eventually(lambda: pool.place(server) == pool.name)
    job = pool.job(outcome="stays", deadline_s=1)
    eventually(lambda: pool.pods(job) and _unschedulable(pool.pods(job)[0]))
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 3.0)
    assert pool.ended(job) == {}
    waits = pool.seen(job)
    assert waits.state is JobState.WAITING
    assert "Insufficient" in waits.reason
    assert waits.began_at is None
    pool.api.delete(PODS, server["metadata"]["name"], namespace="default")
    eventually(lambda: pool.running(job))
    runs = pool.seen(job)
    assert runs.state is JobState.RUNNING
    assert runs.began_at is not None


@pytest.mark.parametrize(
    ("code", "reason"), [("64", "PodFailurePolicy"), ("1", "BackoffLimitExceeded")]
)
def test_a_job_that_fails_is_not_tried_again(pool: Pool, code: str, reason: str) -> None:
    job = pool.job(outcome="fails", exit_code=code)
    eventually(lambda: "Failed" in pool.ended(job))
    assert pool.ended(job)["Failed"] == reason
    assert len(pool.pods(job)) == 1


def test_a_job_that_is_suspended_again_gives_the_accelerator_back(pool: Pool) -> None:
    job = pool.job(outcome="stays")
    eventually(lambda: pool.running(job))
    change = {"spec": {"suspend": True}}
    pool.api.patch(JOBS, job["metadata"]["name"], change=change, namespace=pool.name)
    eventually(lambda: not pool.pods(job))
    eventually(lambda: set(pool.ended(job)) == {"Suspended"})  # said after the pods are told to go


def _unschedulable(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each.get("reason") == "Unschedulable" for each in conditions)
