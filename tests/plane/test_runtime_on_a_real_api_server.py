"""The operator's runtime on a real control plane: what a fake API server cannot show."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.operators import examples
from tests.operators.kube.running import in_thread
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import Server, eventually, gone, real_api, real_server, refusal

from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.errors import Forbidden
from retuned_operator.kube.informer import Change, ObjectCache, Reflector, Selection
from retuned_operator.kube.lease import Leader, NotLeading
from retuned_operator.kube.manager import Controller, Manager, itself
from retuned_operator.kube.resources import (
    CONFIG_MAPS,
    EXPERIMENTS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    TARGETS,
    Obj,
)
from retuned_operator.kube.transport import Timeouts
from retuned_operator.manifests.names import owner
from retuned_operator.manifests.roles import LEASE, operator_roles

pytestmark = pytest.mark.plane

GPU_NODE: Obj = {
    "metadata": {"name": "gpu-runtime", "labels": {"amd.com/gpu.product-name": "MI300X"}},
    "status": {
        "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110", "amd.com/gpu": "8"},
        "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110", "amd.com/gpu": "8"},
    },
}


@pytest.fixture
def server(plane: ControlPlane) -> Iterator[Server]:
    with real_server(plane) as found:
        yield found


def a_target(server: Server, name: str) -> Obj:
    return {"metadata": server.metadata(name), "spec": examples.a_target()["spec"]}


def test_a_store_outlives_a_restart_of_the_api_server(server: Server, plane: ControlPlane) -> None:
    """After it the server knows no version from before, and says so or ends the watch."""
    api = real_api(plane, timeouts=Timeouts(connect_s=5.0, answer_s=60.0))
    store, restarts, changes = ObjectCache(), list[str](), list[Change]()
    reflector = Reflector(
        api,
        Selection(resource=TARGETS, namespace=server.namespace),
        store=store,
        on_change=changes.append,
        on_restart=restarts.append,
        backoff=Backoff(first_s=0.1, most_s=1.0),
    )
    server.api.create(TARGETS, a_target(server, "goes"))
    with in_thread(reflector.run, reflector.interrupt):
        eventually(lambda: len(store) == 1)
        plane.stop_process("kube-apiserver", with_signal=signal.SIGKILL)
        eventually(lambda: len(restarts) > 2)
        assert reflector.silent_s() > 0
        assert store.get(f"{server.namespace}/goes")  # what is known stays known
        plane.start_api()
        server.api.create(TARGETS, a_target(server, "comes"))
        server.api.delete(TARGETS, "goes", namespace=server.namespace)
        eventually(lambda: store.keys() == (f"{server.namespace}/comes",))
    assert any(each.gone for each in changes)
    api.close()


def test_the_operators_role_lets_it_lead_and_keep_and_nothing_besides(
    server: Server, plane: ControlPlane, admin: Path
) -> None:
    here = server.namespace
    roles = operator_roles("retuned", namespace=here, watched=[here], experiments="")
    given = yaml.safe_dump_all(roles)
    plane.kubectl("apply", "-f", "-", kubeconfig=admin, given=given)
    user = f"system:serviceaccount:{here}:retuned"
    api = real_api(plane, user=user)
    # the authorizer's caches are a moment behind the roles
    reads = [partial(api.list, each, namespace=here) for each in (TARGETS, EXPERIMENTS, PODS, JOBS)]
    eventually(lambda: all(refusal(each) is None for each in reads))
    for act in (
        lambda: api.list(SECRETS, namespace=here),
        lambda: api.create(PODS, {"metadata": server.metadata("p"), "spec": {}}),
        lambda: api.list(TARGETS),
        lambda: api.get(LEASES, "another", namespace=here),
    ):
        assert isinstance(refusal(act), Forbidden)
    leader = Leader(api, LEASE, namespace=here, identity="one", on_lost=lambda: None)
    assert leader.acquire(threading.Event())
    leader.confirm()
    api.close()


def _keeping(server: Server, plane: ControlPlane, identity: str, seen: list[str]) -> Manager:
    """Return an operator that notes which targets exist, in their status."""
    api = real_api(plane)
    leader = Leader(api, LEASE, namespace=server.namespace, identity=identity, on_lost=lambda: None)
    manager = Manager(api, leader=leader)
    store = manager.store(TARGETS, namespaces=[server.namespace])

    def reconcile(key: str) -> None:
        body = store.get(key)
        if body is not None and "status" not in body:
            metadata = body["metadata"]
            manager.writer.patch_status(
                TARGETS,
                metadata["name"],
                namespace=metadata["namespace"],
                status={"pods": 1},
                version=metadata["resourceVersion"],
            )
            seen.append(f"{identity} {metadata['name']}")

    manager.add(
        Controller(
            name="noting",
            primary="tuningtargets",
            watches={"tuningtargets": itself},
            reconcile=reconcile,
        )
    )
    return manager


def test_one_operator_takes_over_from_another_and_nothing_is_done_twice(
    server: Server, plane: ControlPlane
) -> None:
    seen: list[str] = []
    one, two = (_keeping(server, plane, name, seen) for name in ("one", "two"))
    with ExitStack() as second:
        with ExitStack() as first:
            first.enter_context(in_thread(one.run))
            eventually(one.is_acting)
            second.enter_context(in_thread(two.run))
            eventually(two.is_synced)
            for name in "ab":
                server.api.create(TARGETS, a_target(server, name))
            eventually(lambda: sorted(seen) == ["one a", "one b"])
            assert not two.is_acting()
        server.api.create(TARGETS, a_target(server, "c"))
        eventually(lambda: len(seen) == 3)
        assert seen[-1] == "two c"


def test_who_is_not_in_the_lease_any_more_writes_nothing(
    server: Server, plane: ControlPlane
) -> None:
    api = real_api(plane)
    lost = threading.Event()
    leader = Leader(api, LEASE, namespace=server.namespace, identity="one", on_lost=lost.set)
    assert leader.acquire(threading.Event())
    writer = api.guarded(leader.confirm)
    writer.create(CONFIG_MAPS, {"metadata": server.metadata("first")})
    body = server.api.get(LEASES, LEASE, namespace=server.namespace)
    taken = {**body, "spec": {**body["spec"], "holderIdentity": "two"}}
    server.api.replace(LEASES, taken)
    with in_thread(leader.hold):
        assert lost.wait(60)
    with pytest.raises(NotLeading):
        writer.create(CONFIG_MAPS, {"metadata": server.metadata("second")})
    assert gone(server.api, CONFIG_MAPS, "second", namespace=server.namespace)
    api.close()


def _a_job(server: Server, experiment: Obj) -> Obj:
    container = {
        "name": "runner",
        "image": "nothing/runs:here",
        "resources": {"limits": {"amd.com/gpu": "1"}},
    }
    reference = owner(
        "KernelExperiment",
        name=experiment["metadata"]["name"],
        uid=experiment["metadata"]["uid"],
    )
    return {
        "metadata": server.metadata("search", ownerReferences=[reference]),
        "spec": {
            "suspend": True,
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [container],
                    "nodeSelector": {"amd.com/gpu.product-name": "MI300X"},
                }
            },
        },
    }


def test_a_job_of_an_experiment_waits_runs_ends_and_goes_with_it(server: Server) -> None:
    api, where = server.api, {"namespace": server.namespace}
    node = {"apiVersion": "v1", "kind": "Node", **GPU_NODE}
    refusal(lambda: api.create(NODES, node))
    body = {"metadata": server.metadata("exp-1"), "spec": examples.an_experiment()["spec"]}
    experiment = api.create(EXPERIMENTS, body)
    job = _a_job(server, experiment)
    api.create_once(JOBS, job)
    assert api.create_once(JOBS, job)["metadata"]["name"] == "search"
    eventually(lambda: _true(api.get(JOBS, "search", **where), "Suspended"))
    assert not api.list(PODS, labels="job-name=search", **where).items
    api.patch(JOBS, "search", change={"spec": {"suspend": False}}, **where)
    eventually(lambda: _true(api.get(JOBS, "search", **where), "Complete"))
    (pod,) = api.list(PODS, labels="job-name=search", **where).items
    assert pod["spec"]["nodeName"].startswith("gpu")
    api.delete(EXPERIMENTS, "exp-1", uid=experiment["metadata"]["uid"], **where)
    eventually(lambda: gone(api, JOBS, "search", **where))
    eventually(lambda: not api.list(PODS, labels="job-name=search", **where).items)


def _true(body: Obj, condition: str) -> bool:
    found = body.get("status", {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in found)
