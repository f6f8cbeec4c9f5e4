"""The real control plane as the `Server` of stories: only nodes are played.

Job controller, garbage collector, rights and admission are Kubernetes' own. No node takes the pods
of a story: they run and end where a turn of the story says so.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime

from tests.operators import examples
from tests.operators.controllers.server import ended
from tests.plane.control_plane import ControlPlane
from tests.plane.reviewing import admission, binding, listed
from tests.plane.servers import eventually, gone, real_api, refusal

from retuned_operator.controllers import objects
from retuned_operator.kube.client import Api
from retuned_operator.kube.resources import (
    DECISIONS,
    FREEZES,
    JOBS,
    PODS,
    SERVICE_ACCOUNTS,
    Obj,
    Resource,
)
from retuned_operator.manifests import JobSettings, operator_roles, people_roles, priority_class

NOBODY = "nobodys-place"
"""Runtime class of pods that no node takes; and who schedules servers."""
SETTINGS = JobSettings(
    image="nothing/runs:here", gpu_models={"MI300X": {"tests/pool": NOBODY}}, runtime_class=NOBODY
)
_PEOPLE = ("gpu", "sre")
"""Groups that may approve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServer:
    """One namespace of the control plane."""

    namespace: str
    api: Api
    """Of who may do all."""
    writes: Api
    """Of the operator, with the rights that the chart gives it."""

    def at(self, now: datetime) -> AbstractContextManager[object]:
        """Nobody sets its clock."""
        return nullcontext()

    # --- as others than the operator use it -------------------------------------------------------

    def put(self, resource: Resource, body: Obj) -> Obj:
        if resource is PODS:
            body = body | {"spec": body["spec"] | {"schedulerName": NOBODY}}
        return self.api.create(resource, body)

    def say(self, resource: Resource, body: Obj, *, user: str, groups: tuple[str, ...]) -> None:
        """Let admission decide, as soon as it knows what the word is about: it reads a cache."""
        person = self.api.acting_as(user, groups)
        eventually(lambda: refusal(lambda: person.create(resource, body)) is None)

    def change(
        self, resource: Resource, name: str, change: Obj, *, namespace: str, subresource: str
    ) -> Obj:
        assert subresource == "status", "nothing else changes in a story"
        found = self.api.get(resource, name, namespace=namespace).get("status", {})
        status = found | change["status"]
        return self.api.patch_status(resource, name, status=status, namespace=namespace)

    def remove(self, resource: Resource, name: str, *, namespace: str) -> None:
        self.api.delete(resource, name, namespace=namespace)

    def all(self, resource: Resource) -> list[Obj]:
        if resource is FREEZES:
            return []  # other tests' freezes are for their servers
        return list(self.api.list(resource, namespace=self.namespace).items)

    def is_enforced(self) -> bool:
        """Whether admission refuses a word about nothing: policies are compiled a bit later."""
        body = examples.a_decision() | {"metadata": {"name": "early", "namespace": self.namespace}}
        error = refusal(lambda: self.api.create(DECISIONS, body))
        if error is None:
            self.remove(DECISIONS, "early", namespace=self.namespace)
        return "ValidatingAdmissionPolicy" in str(error)

    # --- what nodes do ----------------------------------------------------------------------------

    def run_pods(self, *, full: bool) -> None:
        """Let each Job that was let go have its pod on a node; the Job controller makes it."""
        assert not full, "there is always room in a story"
        for job in self.all(JOBS):
            if not job["spec"]["suspend"] and not ended(job):
                pod = eventually(lambda job=job: self._pod_of(job))  # type: ignore[misc]
                if pod["status"].get("phase") != "Running":
                    self._pod_is(pod, "Running")

    def end_job(self, name: str, *, namespace: str, type: str) -> None:
        """End a Job's pod, and wait until the Job controller has seen that."""
        assert type == "Complete", "no Job fails in a story"
        job = self.api.get(JOBS, name, namespace=namespace)
        pod = self._pod_of(job)
        assert pod is not None
        self._pod_is(pod, "Succeeded")
        eventually(lambda: ended(self.api.get(JOBS, name, namespace=namespace)))

    def _pod_of(self, job: Obj) -> Obj | None:
        """Return a Job's pod; None before there is one."""
        uid = job["metadata"]["uid"]
        return next((pod for pod in self.all(PODS) if objects.owner_uid(pod) == uid), None)

    def _pod_is(self, pod: Obj, phase: str) -> None:
        conditions = [{"type": "PodScheduled", "status": "True"}]
        status = {"phase": phase, "conditions": conditions}
        name = pod["metadata"]["name"]
        self.change(PODS, name, {"status": status}, namespace=self.namespace, subresource="status")


@contextmanager
def real_cluster(plane: ControlPlane, *, replicas: bool = False) -> Iterator[RealServer]:
    """Make a namespace with people, their admission, and an operator with the chart's rights."""
    name = f"story-{uuid.uuid4().hex[:10]}"
    namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    roles = operator_roles(
        f"operator-{name}", namespace=name, watched=[name], experiments="", replicas=replicas
    )
    rules = [*admission(name), *(each for each in roles if each["kind"].startswith("Cluster"))]
    rules += [
        binding(f"{name}-{group}", "retuned-approver", {"kind": "Group", "name": group})
        for group in _PEOPLE
    ]
    usual = [*people_roles(), priority_class(SETTINGS.priority_class), _nobodys_place()]
    bodies = [namespace, *usual, *roles, *rules]
    admin, force = plane.admin(), ("--server-side", "--force-conflicts")
    plane.kubectl("apply", *force, "-f", "-", kubeconfig=admin, given=listed(bodies))
    operator = real_api(plane, user=f"system:serviceaccount:{name}:operator-{name}")
    server = RealServer(namespace=name, api=real_api(plane), writes=operator)
    try:
        eventually(lambda: not gone(server.api, SERVICE_ACCOUNTS, "default", namespace=name))
        eventually(lambda: refusal(lambda: operator.list(JOBS, namespace=name)) is None)
        eventually(server.is_enforced)
        yield server
    finally:
        operator.close()
        server.api.close()
        given = listed([namespace, *rules])
        plane.kubectl("delete", "--wait=false", "-f", "-", kubeconfig=admin, given=given)


def _nobodys_place() -> Obj:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": NOBODY},
        "handler": "none",
        "scheduling": {"nodeSelector": {"tests/pool": NOBODY}},
    }
