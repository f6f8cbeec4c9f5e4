"""The API server without HTTP, and what Kubernetes does beside it, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, TypeVar
from unittest import mock

from tests.fakeapi import objects as fake_objects
from tests.fakeapi.copying import copied
from tests.fakeapi.objects import Objects, Place, Writer
from tests.fakeapi.refusals import Refusal
from tests.fakeapi.storage import Storage
from tests.operators.controllers.server import ended

from retuned_operator.controllers import objects as reading
from retuned_operator.kube.errors import answered
from retuned_operator.kube.resources import JOBS, NAMESPACES, PODS, Obj, Resource

T = TypeVar("T")
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class MemoryServer:
    """A `Server` in memory, with schemas, rules, versions and finalizers; its clock can be set."""

    def __init__(self) -> None:
        self.namespace = "serving"
        self.objects = Objects(Storage())
        self.writes = MemoryApi(self.objects)
        for name in ("default", self.namespace, "lab"):
            body: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.put(NAMESPACES, body)

    def at(self, now: datetime) -> AbstractContextManager[object]:
        """Let it be some time there, in whole seconds as API servers write them."""
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return mock.patch.object(fake_objects, "_now", lambda: stamp)  # noqa: PT008 - a Mock takes longer

    # --- as others than the operator use it -------------------------------------------------------

    def put(self, resource: Resource, body: Obj) -> Obj:
        place = Place(resource=resource, namespace=body["metadata"].get("namespace", ""))
        return self._now(lambda: self.objects.create(place, body, Writer()))

    def say(self, resource: Resource, body: Obj, *, user: str, groups: tuple[str, ...]) -> None:
        self.put(resource, body)

    def change(
        self, resource: Resource, name: str, change: Obj, *, namespace: str, subresource: str
    ) -> Obj:
        place = Place(resource=resource, namespace=namespace, name=name, subresource=subresource)
        return self._now(lambda: self.objects.patch(place, change, _MERGE, Writer()))

    def remove(self, resource: Resource, name: str, *, namespace: str) -> None:
        place = Place(resource=resource, namespace=namespace, name=name)
        self._now(lambda: self.objects.delete(place, {}))

    def all(self, resource: Resource) -> list[Obj]:
        return self.objects.storage.select(resource, "", lambda _: True)

    def _now(self, do: Callable[[], T]) -> T:
        with self.objects.storage.changed:
            return do()

    # --- what Kubernetes does ---------------------------------------------------------------------

    def run_pods(self, *, full: bool) -> None:
        pods = {reading.owner_uid(body): body for body in self.all(PODS)}
        jobs = {body["metadata"]["uid"]: body for body in self.all(JOBS)}
        for uid, pod in pods.items():
            if uid and _is_of_job(pod) and (uid not in jobs or jobs[uid]["spec"]["suspend"]):
                self.remove(PODS, pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
        for uid, job in jobs.items():
            if job["spec"]["suspend"] or ended(job):
                continue
            pod = pods.get(uid) or self.put(PODS, pod_of(job))
            status = pod.get("status", {})
            if not status.get("conditions") and status.get("phase") != "Running":
                self._pod_is(pod, NO_ROOM if full else {"phase": "Running"})
            elif status.get("phase") == "Pending" and not full:
                self._pod_is(pod, {"phase": "Running", "conditions": []})

    def end_job(self, name: str, *, namespace: str, type: str) -> None:
        status = {"conditions": [{"type": type, "status": "True"}]}
        self.change(JOBS, name, {"status": status}, namespace=namespace, subresource="status")

    def _pod_is(self, pod: Obj, status: Obj) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.change(PODS, name, {"status": status}, namespace=namespace, subresource="status")


class MemoryApi:
    """The writes of an API server in memory.

    Parameters
    ----------
    objects
        Shared with everybody else.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        place = Place(resource=resource, namespace=namespace, name=name)
        return self._asked(lambda: self._objects.get(place))

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        given: Obj = copied(dict(body))
        place = Place(resource=resource, namespace=given["metadata"].get("namespace", ""))
        writer = Writer(manager="retuned-operator")
        return self._asked(lambda: self._objects.create(place, given, writer))

    def patch(
        self, resource: Resource, name: str, *, change: Mapping[str, Any], namespace: str = ""
    ) -> Obj:
        place = Place(resource=resource, namespace=namespace, name=name)
        given = copied(dict(change))
        return self._asked(lambda: self._objects.patch(place, given, _MERGE, Writer()))

    def patch_status(
        self,
        resource: Resource,
        name: str,
        *,
        status: Mapping[str, Any],
        namespace: str = "",
        version: str = "",
    ) -> Obj:
        place = Place(resource=resource, namespace=namespace, name=name, subresource="status")
        change: list[Obj] = [{"op": "add", "path": "/status", "value": copied(dict(status))}]
        if version:
            change.append({"op": "replace", "path": "/metadata/resourceVersion", "value": version})
        return self._asked(lambda: self._objects.patch(place, change, _JSON_PATCH, Writer()))

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
    ) -> None:
        place = Place(resource=resource, namespace=namespace, name=name)
        options = {"preconditions": {"uid": uid}} if uid else {}
        self._asked(lambda: self._objects.delete(place, options))

    def _asked(self, do: Callable[[], Obj]) -> Obj:
        try:
            with self._objects.storage.changed:
                return copied(do())
        except Refusal as error:
            raise answered("asked", status=error.code, body=error.body()) from error


def _is_of_job(pod: Obj) -> bool:
    return any(each["kind"] == "Job" for each in pod["metadata"].get("ownerReferences", ()))


NO_ROOM: Obj = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient amd.com/gpu.",
        }
    ],
}
"""Status of a pod that waits for room."""


def pod_of(job: Obj) -> Obj:
    """Return the pod of a Job, as the Job controller makes it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
    metadata = job["metadata"]
    about = {"name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-x",
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "ownerReferences": [owner | about],
        },
        "spec": {"containers": [{"name": "runner"}]},
    }
