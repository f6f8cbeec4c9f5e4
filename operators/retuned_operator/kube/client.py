"""An API server as the operator uses it: objects are JSON data, refusals are typed.

``connect()`` finds it; ``Api`` has one method a verb. A write can be guarded: the guard is called
before each and raises if the operator must not act any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retuned_operator.kube.errors import AlreadyExists, Conflict, Gone
from retuned_operator.kube.kubeconfig import configuration_of
from retuned_operator.kube.resources import PODS, Obj, Resource
from retuned_operator.kube.responses import namespace_of, owners_of, selection, typed
from retuned_operator.kube.transport import Timeouts, Transport
from retuned_operator.kube.watch import Listing, Watch
from retuned_operator.manifests.names import MANAGER

_PAGE = 500
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class Api:
    """One API server, seen by one identity; safe for threads.

    Parameters
    ----------
    transport
        How it is reached.
    guard
        Called before each write; raises if nothing may be written any more.
    manager
        Field manager of server-side apply.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        guard: Callable[[], None] | None = None,
        manager: str = MANAGER,
    ) -> None:
        self._transport = transport
        self._guard = guard
        self._manager = manager

    def guarded(self, guard: Callable[[], None]) -> Api:
        """Return the same API server for who may write only while `guard` does not raise."""
        return Api(self._transport, guard=guard, manager=self._manager)

    def acting_as(self, user: str, groups: Sequence[str]) -> Api:
        """Return the same API server with requests in another user's name, by impersonation.

        Raises
        ------
        ValueError
            If a name could end a header.
        """
        return Api(
            self._transport.acting_as(user, groups), guard=self._guard, manager=self._manager
        )

    # --- reading ----------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Return one object.

        Raises
        ------
        ApiError
            `NotFound`, or any other.
        """
        return self._object("GET", resource.path(namespace=namespace, name=name))

    def list(
        self, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing:
        """Return all selected objects, in their current state.

        Parameters
        ----------
        resource
            Their kind.
        namespace
            Empty means all namespaces.
        labels, fields
            Selectors as kubectl takes them.

        Raises
        ------
        ApiError
            If the list cannot be had whole.
        """
        chosen = partial(self.pages, resource, namespace=namespace, labels=labels, fields=fields)
        try:
            pages = tuple(chosen())
        except Gone:  # the list changed too much while it was read; read it in one part
            pages = tuple(chosen(limit=0))
        items = tuple(each for page in pages for each in page.items)
        return Listing(items=items, version=pages[-1].version)

    def pages(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = _PAGE,
    ) -> Iterator[Listing]:
        """Yield the objects of a `list` in parts, so that they need not all be in memory.

        Parameters
        ----------
        resource, namespace, labels, fields
            As `list`.
        limit
            Objects a part; 0 means one part.

        Raises
        ------
        ApiError
            `Gone` if so much changed meanwhile that the rest cannot be had, or any other.
        """
        query = selection(labels, fields) | ({"limit": str(limit)} if limit else {})
        path = resource.path(namespace=namespace)
        following = "?"
        while following:
            page = self._object("GET", path, query=query)
            metadata = page.get("metadata") or {}
            # the items of built-in kinds do not say what they are
            items = tuple(typed(resource, each) for each in page.get("items") or ())
            yield Listing(items=items, version=str(metadata.get("resourceVersion", "")))
            following = str(metadata.get("continue") or "")
            query = query | {"continue": following}

    def watch(
        self,
        resource: Resource,
        *,
        version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> Watch:
        """Return what happens to the selected objects from a version on.

        Raises
        ------
        ApiError
            `Gone` if the version is too old, here or while it is read; `Unavailable` if nothing
            was heard for too long.
        """
        query = selection(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(self._transport.timeouts.watch_s))),
        }
        path = resource.path(namespace=namespace)
        return Watch(self._transport.stream(path, query=query), resource)

    def logs(
        self, namespace: str, name: str, *, container: str, limit_bytes: int, within_s: float = 30.0
    ) -> bytes:
        """Return what a container of a pod has written, from the beginning.

        Parameters
        ----------
        namespace, name
            The pod.
        container
            Which of its containers.
        limit_bytes
            The server sends no more of it; what is longer is cut off.
        within_s
            Seconds that it may take.

        Raises
        ------
        ApiError
            `NotFound` if the pod does not exist, `Invalid` if the container has never run or its
            node has forgotten it, or any other.
        """
        path = PODS.path(namespace=namespace, name=name, subresource="log")
        query = {"container": container, "limitBytes": str(limit_bytes)}
        return self._transport.text(path, query=query, max_bytes=limit_bytes, within_s=within_s)

    # --- writing ----------------------------------------------------------------------------------

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        """Create an object and return it; also for reviews, which the API server does not store.

        Raises
        ------
        ApiError
            `AlreadyExists` if there is one of that name, or any other.
        """
        self._may_write()
        path = resource.path(namespace=namespace_of(resource, body))
        return self._object("POST", path, query=self._named(), body=typed(resource, body))

    def create_once(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        """Make an object, or return the one that was made before for the same owner.

        For children with deterministic names: after a crash the operator creates the same again.

        Raises
        ------
        ApiError
            `Conflict` if the existing object has other owners, or any other.
        """
        try:
            return self.create(resource, body)
        except AlreadyExists as error:
            wanted = body["metadata"]
            found = self.get(resource, wanted["name"], namespace=namespace_of(resource, body))
            if owners_of(found) == owners_of(body):
                return found
            text = f"{resource.plural} {wanted['name']} exists and has other owners"
            raise Conflict(text, status=409, reason="AlreadyExists") from error

    def apply(self, resource: Resource, body: Mapping[str, Any], *, force: bool = True) -> Obj:
        """Make the fields of an object what they are in `body`; others stay as they are.

        Fields that this manager once applied and now leaves out go away.

        Parameters
        ----------
        resource
            Its kind.
        body
            The fields that this manager answers for; with a ``resourceVersion`` they are applied
            to that version only.
        force
            Whether to take fields over from other managers; else they are a `Conflict`.
        """
        self._may_write()
        path = resource.path(
            namespace=namespace_of(resource, body), name=str(body["metadata"]["name"])
        )
        query = self._named() | {"force": str(force).lower()}
        return self._object(
            "PATCH", path, query=query, body=typed(resource, body), content_type=_APPLY
        )

    def patch(
        self, resource: Resource, name: str, *, change: Mapping[str, Any], namespace: str = ""
    ) -> Obj:
        """Merge a change into an object; None takes a field away.

        With a ``resourceVersion`` in its metadata it is for that version only.
        """
        self._may_write()
        path = resource.path(namespace=namespace, name=name)
        return self._object("PATCH", path, query=self._named(), body=change, content_type=_MERGE)

    def patch_status(
        self,
        resource: Resource,
        name: str,
        *,
        status: Mapping[str, Any],
        namespace: str = "",
        version: str = "",
    ) -> Obj:
        """Replace the whole status of an object.

        Parameters
        ----------
        resource, name, namespace
            Which.
        status
            The new one.
        version
            ``resourceVersion`` that it was decided on: another one is a `Conflict`. Empty writes
            over whatever is there.
        """
        self._may_write()
        change: list[Obj] = [{"op": "add", "path": "/status", "value": dict(status)}]
        if version:
            change.append({"op": "replace", "path": "/metadata/resourceVersion", "value": version})
        path = resource.path(namespace=namespace, name=name, subresource="status")
        return self._object(
            "PATCH", path, query=self._named(), body=change, content_type=_JSON_PATCH
        )

    def replace(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        """Write over an object; its ``resourceVersion`` must be the newest, else `Conflict`."""
        self._may_write()
        path = resource.path(
            namespace=namespace_of(resource, body), name=str(body["metadata"]["name"])
        )
        return self._object("PUT", path, query=self._named(), body=typed(resource, body))

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
    ) -> None:
        """Ask for the end of an object and, after it, of what it owns.

        Parameters
        ----------
        resource, name, namespace
            Which.
        uid, version
            Only if it still is this one; else `Conflict`. Empty means whichever it is.

        Raises
        ------
        ApiError
            `NotFound` if it is not there, or any other.
        """
        self._may_write()
        body: Obj = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body["propagationPolicy"] = "Background"
        preconditions = {"uid": uid, "resourceVersion": version}
        preconditions = {key: value for key, value in preconditions.items() if value}
        if preconditions:
            body["preconditions"] = preconditions
        self._object("DELETE", resource.path(namespace=namespace, name=name), body=body)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # --- within -----------------------------------------------------------------------------------

    def _object(self, method: str, path: str, **more: Any) -> Obj:  # noqa: ANN401 - passed on
        found: Obj = self._transport.request(method, path, **more)
        return found

    def _named(self) -> dict[str, str]:
        # an unknown field is a mistake or an older schema; left out quietly it would be neither
        return {"fieldManager": self._manager, "fieldValidation": "Strict"}

    def _may_write(self) -> None:
        if self._guard is not None:
            self._guard()


def connect(
    kubeconfig: Path | None = None,
    *,
    context: str | None = None,
    timeouts: Timeouts | None = None,
) -> Api:
    """Return the API server that a kubeconfig, the environment or the pod names.

    Raises
    ------
    UsageError
        If no kubeconfig or service account names it.
    """
    configuration = configuration_of(kubeconfig, context=context)
    return Api(Transport(configuration, timeouts=timeouts or Timeouts()))
