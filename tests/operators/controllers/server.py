"""What stories need of an API server: memory or a real one, and how the operator's writes fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from retuned_operator.controllers.ports import Writes
from retuned_operator.kube.resources import Obj, Resource

T = TypeVar("T")


class Server(Protocol):
    """One API server, with the Job controller and the kubelets beside it."""

    @property
    def namespace(self) -> str:
        """Where servers are."""
        ...

    @property
    def writes(self) -> Writes:
        """The API server as the operator uses it."""
        ...

    def at(self, now: datetime) -> AbstractContextManager[object]:
        """Let it be some time there, if its clock can be set."""
        ...

    def put(self, resource: Resource, body: Obj) -> Obj:
        """Make an object as somebody else than the operator."""
        ...

    def say(self, resource: Resource, body: Obj, *, user: str, groups: tuple[str, ...]) -> None:
        """Make an object as one of the people; admission decides."""
        ...

    def change(
        self, resource: Resource, name: str, change: Obj, *, namespace: str, subresource: str
    ) -> Obj:
        """Merge a change into an object as somebody else than the operator."""
        ...

    def remove(self, resource: Resource, name: str, *, namespace: str) -> None:
        """Delete an object as somebody else than the operator."""
        ...

    def all(self, resource: Resource) -> list[Obj]:
        """Return every object of a kind."""
        ...

    def run_pods(self, *, full: bool) -> None:
        """Let Jobs that were let go have a pod that runs, or waits where there is no room."""
        ...

    def end_job(self, name: str, *, namespace: str, type: str) -> None:
        """Let a Job end, ``Complete`` or ``Failed``."""
        ...


def ended(job: Obj) -> bool:
    """Whether a Job has come to its end."""
    found = job.get("status", {}).get("conditions") or ()
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in found
    )


class Died(BaseException):
    """The operator was killed; nothing may catch it."""


class Moment(StrEnum):
    """When something happens to a write."""

    BEFORE = "before"
    """It never reaches the API server."""
    AFTER = "after"
    """It is done there, and the answer does not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What happens to a write."""

    when: Moment
    does: Callable[[], None]
    """Raises."""


Hits = Callable[[int, str, str], Hit | None]
"""What happens to a write, by how many there were before it, its kind, and the object's name."""


class Faulty:
    """The writes of all operators there ever were, each of which may go wrong.

    Parameters
    ----------
    writes
        Does them.
    """

    def __init__(self, writes: Writes) -> None:
        self.kinds: list[str] = []
        """Every write that was tried: verb, kind of object, and what it says of it."""
        self.made: list[str] = []
        """Kind and name of everything that was made."""
        self.hits: Hits = lambda number, kind, name: None
        """What happens to writes."""
        self._writes = writes

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        return self._writes.get(resource, name, namespace=namespace)

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        def make() -> Obj:
            made = self._writes.create(resource, body)
            self.made.append(f"{resource.plural} {body['metadata']['name']}")
            return made

        labels = body["metadata"].get("labels") or {}
        word = str(body.get("reason") or labels.get("retuned.dev/role", ""))
        return self._write(f"create {resource.plural} {word}", body["metadata"]["name"], make)

    def patch(
        self, resource: Resource, name: str, *, change: Mapping[str, Any], namespace: str = ""
    ) -> Obj:
        spec: Obj = change.get("spec") or {}
        word = ("hold" if spec["suspend"] else "let go") if "suspend" in spec else ""
        return self._write(
            f"patch {resource.plural} {word}",
            name,
            lambda: self._writes.patch(resource, name, change=change, namespace=namespace),
        )

    def patch_status(
        self,
        resource: Resource,
        name: str,
        *,
        status: Mapping[str, Any],
        namespace: str = "",
        version: str = "",
    ) -> Obj:
        return self._write(
            f"status {resource.plural} {status.get('phase', '')}",
            name,
            lambda: self._writes.patch_status(
                resource, name, status=status, namespace=namespace, version=version
            ),
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
    ) -> None:
        self._write(
            f"delete {resource.plural}",
            name,
            lambda: self._writes.delete(
                resource, name, namespace=namespace, uid=uid, version=version
            ),
        )

    def _write(self, kind: str, name: str, do: Callable[[], T]) -> T:
        kind = kind.strip()
        hit = self.hits(len(self.kinds), kind, name)
        self.kinds.append(kind)
        if hit is not None and hit.when is Moment.BEFORE:
            hit.does()
        found = do()
        if hit is not None and hit.when is Moment.AFTER:
            hit.does()
        return found
