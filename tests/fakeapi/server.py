"""A fake API server: an HTTP server in this process that behaves like Kubernetes' where we look.

``with FakeApi() as fake: api = fake.api()``. What it must get right is checked against a real one
by tests/plane/test_conformance.py.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from kubernetes.client.configuration import Configuration
from tests.fakeapi.access import Access
from tests.fakeapi.faults import Fault, Faults
from tests.fakeapi.objects import Objects, Place, Writer
from tests.fakeapi.paths import place_of, seen
from tests.fakeapi.refusals import Refusal, bad
from tests.fakeapi.selectors import selector
from tests.fakeapi.storage import Storage

from retuned_operator.kube.client import Api
from retuned_operator.kube.resources import (
    ACCESS_REVIEWS,
    DEFINITIONS,
    NAMESPACES,
    PODS,
    SELF_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from retuned_operator.kube.transport import Timeouts, Transport
from retuned_operator.schema.crds import KINDS, definition_of

Obj = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TIMEOUTS = Timeouts(connect_s=5.0, answer_s=30.0, watch_s=290.0, stall_s=30.0)


class FakeApi:
    """One fake API server on a free port.

    Parameters
    ----------
    namespaces
        That are there from the start.
    bookmark_s
        Seconds of silence after which a watch gets a bookmark.
    """

    def __init__(
        self, *, namespaces: tuple[str, ...] = ("default", "serving"), bookmark_s: float = 1.0
    ) -> None:
        self.faults = Faults()
        self.access = Access()
        self.storage = Storage()
        self.objects = Objects(self.storage)
        self.bookmark_s = bookmark_s
        self.logs: dict[tuple[str, str, str], bytes] = {}
        """What containers have written, by namespace, pod and container."""
        self.stopping = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._apis: list[Api] = []
        for name in namespaces:
            self.make(NAMESPACES, {"metadata": {"name": name}})
        for kind in KINDS:
            self.make(DEFINITIONS, definition_of(kind))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def api(self, token: str = "admin", *, timeouts: Timeouts = _TIMEOUTS) -> Api:
        """Return it as who has a token sees it; closed with the server."""
        configuration = Configuration(host=self.url)
        configuration.api_key["BearerToken"] = f"Bearer {token}"
        found = Api(Transport(configuration, timeouts=timeouts))
        self._apis.append(found)
        return found

    def make(self, resource: Resource, body: Mapping[str, Any], **status: Any) -> Obj:
        """Make an object without a request, with a status if one is given."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        metadata = dict(body["metadata"])
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"):
            metadata.pop(name, None)
        namespace = metadata.get("namespace", "") if resource.namespaced else ""
        place = Place(resource=resource, namespace=namespace, name=metadata["name"])
        status = status or body.pop("status", None) or {}
        with self.storage.changed:
            made = self.objects.create(place, {**body, "metadata": metadata}, Writer())
            if status:
                made = self.set_status(resource, made, **status)
        return made

    def set_status(self, resource: Resource, body: Mapping[str, Any], **status: Any) -> Obj:
        """Merge into the status of an object, as a controller elsewhere would."""
        metadata = body["metadata"]
        place = Place(
            resource=resource,
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            subresource="status",
        )
        with self.storage.changed:
            change = {"status": status}
            return self.objects.patch(place, change, "application/merge-patch+json", Writer())

    def expire(self) -> None:
        """Make every version until now too old to watch from."""
        self.storage.expire()

    def disconnect(self) -> None:
        """Break every connection that is open."""
        self._server.disconnect()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        with self.storage.changed:
            self.storage.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server.disconnect()
        self._thread.join()
        for each in self._apis:
            each.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, fake: FakeApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fake = fake
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def disconnect(self) -> None:
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave aside what breaks when connections do."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def _answer(self) -> None:
        self._fake = self.server.fake
        split = urlsplit(self.path)
        self._query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        try:
            place = place_of(split.path)
            verb = self._verb(place)
            who = self._fake.access.acting(
                self._fake.access.who(self.headers.get("Authorization", "")),
                self.headers.get("Impersonate-User", ""),
                self.headers.get_all("Impersonate-Group") or (),
            )
            fault = self._fake.faults.meet(seen(verb, place, who.name)) or Fault()
            if self._goes_wrong(fault):
                return
            if place.resource == SELF_REVIEWS:  # anybody may ask who they are
                self._send(201, {"status": self._fake.access.review_self(who)})
                return
            self._authorize(who, verb, place)
            if verb == "watch":
                self._watch(place, fault)
                return
            if (place.resource, place.subresource) == (PODS, "log"):
                self._log(place)
                return
            answer = self._do(verb, place, json.loads(text) if text else {})
        except Refusal as refusal:
            self._send(refusal.code, refusal.body())
            return
        if fault.drop == "after":
            self.close_connection = True
            return
        self._send(201 if verb == "create" else 200, answer)

    def _goes_wrong(self, fault: Fault) -> bool:
        if fault.latency_s:
            self._fake.stopping.wait(fault.latency_s)
        if fault.drop == "before":
            self.close_connection = True
            return True
        if fault.status:
            refusal = Refusal(fault.status, "Fault", message="made to fail")
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            self._send(fault.status, refusal.body(), **headers)
            return True
        return False

    def _verb(self, place: Place) -> str:
        if self.command != "GET":
            return _VERBS[self.command]
        if place.name:
            return "get"
        return "watch" if self._query.get("watch") in ("true", "1") else "list"

    def _authorize(self, who: Any, verb: str, place: Place) -> None:
        resource = "/".join(filter(None, (place.resource.plural, place.subresource)))
        group, namespace = place.resource.group, place.namespace
        if not self._fake.access.may(
            who, verb, group=group, resource=resource, namespace=namespace, name=place.name
        ):
            text = f'{resource} is forbidden: User "{who.name}" cannot {verb} resource "{resource}"'
            raise Refusal(403, "Forbidden", message=text)

    def _do(self, verb: str, place: Place, body: Any) -> Obj:
        objects, storage = self._fake.objects, self._fake.storage
        writer = Writer(
            manager=self._query.get("fieldManager", "unknown"),
            force=self._query.get("force") == "true",
            strict=self._query.get("fieldValidation") == "Strict",
        )
        with storage.changed:
            if verb == "get":
                return objects.get(place)
            if verb == "list":
                return self._list(place)
            if verb == "delete":
                return objects.delete(place, body)
            if verb == "update":
                return objects.replace(place, body, writer)
            if verb == "patch":
                return objects.patch(place, body, self.headers["Content-Type"], writer)
            if place.resource == TOKEN_REVIEWS:
                return {**body, "status": self._fake.access.review_token(body)}
            if place.resource == ACCESS_REVIEWS:
                return {**body, "status": self._fake.access.review_access(body)}
            return objects.create(place, body, writer)

    def _log(self, place: Place) -> None:
        """Send what a container has written, as text."""
        with self._fake.storage.changed:
            self._fake.objects.get(place)
        container = self._query.get("container", "")
        found = self._fake.logs.get((place.namespace, place.name, container))
        if found is None:
            raise bad(f"container {container} is not valid for pod {place.name}")
        text = found[: int(self._query.get("limitBytes") or len(found))]
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def _selector(self) -> Any:
        return selector(self._query.get("labelSelector", ""), self._query.get("fieldSelector", ""))

    def _list(self, place: Place) -> Obj:
        storage, following = self._fake.storage, self._query.get("continue", "")
        if following:
            version, items = storage.rest(following)
        else:
            version = storage.version
            items = storage.select(place.resource, place.namespace, self._selector())
            for each in items:
                del each["kind"], each["apiVersion"]  # as Kubernetes does for its own kinds
        limit = int(self._query.get("limit") or 0) or len(items)
        metadata: Obj = {"resourceVersion": str(version)}
        if limit < len(items):
            metadata["continue"] = storage.keep_rest(version, items[limit:])
        return {
            "kind": f"{place.resource.kind}List",
            "apiVersion": place.resource.api_version,
            "metadata": metadata,
            "items": items[:limit],
        }

    def _watch(self, place: Place, fault: Fault) -> None:
        text = self._query.get("resourceVersion", "")
        events = self._fake.storage.follow(
            place.resource,
            place.namespace,
            matches=self._selector(),
            version=None if text in ("", "0") else int(text),
            stop=self._fake.stopping,
            bookmark_s=self._fake.bookmark_s,
            timeout_s=float(self._query.get("timeoutSeconds") or 1800),
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fault.drop:
            self.close_connection = True
            return
        if fault.stall:
            self._fake.stopping.wait()
            return
        with contextlib.suppress(OSError):
            for event in _until_refused(events):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, body: Obj, **headers: str) -> None:
        text = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)


def _until_refused(events: Iterator[Obj]) -> Iterator[Obj]:
    """Yield events, and a refusal as the last of them, as a real API server does."""
    try:
        yield from events
    except Refusal as refusal:
        yield {"type": "ERROR", "object": refusal.body()}
