"""Answers of an API server, whole or as they come: bounded in size and time.

What requests say about objects.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import msgspec
import urllib3

from retuned_operator.kube.errors import Unavailable, printable
from retuned_operator.kube.resources import Obj, Resource

MAX_ANSWER_BYTES = 64 * 2**20
"""No page of a list is larger."""
MAX_ANSWER_S = 300.0
"""No answer takes longer."""
MAX_EVENT_BYTES = 8 * 2**20
"""No event of a watch is larger: an object is 2 MiB at most."""


class Stream:
    """An answer that goes on; one thread reads it, any thread may interrupt it."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        what: str,
        *,
        doubt: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._response = response
        self._what = what
        self._doubt = doubt

    def __iter__(self) -> Iterator[Any]:
        pending = bytearray()
        try:
            for chunk in self._response.stream(2**16, decode_content=True):
                pending += chunk
                *lines, rest = pending.split(b"\n")
                for line in filter(None, lines):
                    yield self._read(bytes(line))
                pending = bytearray(rest)
                if len(pending) > MAX_EVENT_BYTES:
                    raise Unavailable(f"{self._what}: an event is too large")
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self._doubt(error)
            raise no_answer(self._what, error) from error

    def interrupt(self) -> None:
        """End it from another thread: a blocked reader gets `Unavailable`."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has ended already
            self._response.shutdown()

    def close(self) -> None:
        """Give the connection back; only the thread that reads may do it."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, line: bytes) -> Any:  # noqa: ANN401 - any JSON
        found = json_of(line)
        if found is None:
            raise Unavailable(f"{self._what}: an event is not JSON")
        return found


def bounded(
    response: urllib3.BaseHTTPResponse,
    what: str,
    *,
    max_bytes: int | None = None,
    within_s: float = MAX_ANSWER_S,
) -> bytes:
    """Return all of an answer.

    Parameters
    ----------
    what
        What was asked, for messages.
    max_bytes
        More of it is an error; None takes `MAX_ANSWER_BYTES`.

    Raises
    ------
    Unavailable
        If it is too large or takes too long.
    """
    max_bytes = MAX_ANSWER_BYTES if max_bytes is None else max_bytes
    parts, size = [], 0
    until = time.monotonic() + within_s
    for chunk in response.stream(2**18, decode_content=True):
        size += len(chunk)
        wrong = "is too large" if size > max_bytes else ""
        if time.monotonic() > until:
            wrong = wrong or f"took longer than {within_s:g} s"
        if wrong:
            response.close()
            raise Unavailable(f"{what}: the answer {wrong}", status=response.status)
        parts.append(chunk)
    return b"".join(parts)


def json_of(text: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON that is an object; None for anything else."""
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def no_answer(what: str, error: Exception) -> Unavailable:
    """Return the error of a request that came to nothing."""
    return Unavailable(f"{what}: {type(error).__name__}: {printable(str(error))[:300]}")


def selection(labels: str, fields: str) -> dict[str, str]:
    """Return the selectors of a request; empty ones are left out."""
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in query.items() if value}


def namespace_of(resource: Resource, body: Mapping[str, Any]) -> str:
    """Return the namespace that an object names; empty for kinds that have none."""
    return str(body.get("metadata", {}).get("namespace", "")) if resource.namespaced else ""


def typed(resource: Resource, body: Mapping[str, Any]) -> Obj:
    """Return an object with its API version and kind."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def owners_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of the owners of an object, sorted."""
    owners = body.get("metadata", {}).get("ownerReferences") or ()
    return tuple(sorted(str(each.get("uid", "")) for each in owners))
