"""Requests to an API server: who asks, over which connection, with which limits.

The official client reads kubeconfigs, tokens that are renewed and certificates, and opens the
connections; this sends JSON over them. Nothing is tried twice here and no redirect is followed: who
asked knows whether asking again is safe.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import msgspec
import urllib3
import yaml
from kubernetes import config as kubernetes_config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import HTTPHeaderDict

from retuned.errors import UsageError
from retuned_operator.runtime.errors import Unavailable, answered, printable

MAX_ANSWER_BYTES = 64 * 2**20
"""No page of a list is larger."""
MAX_ANSWER_S = 300.0
"""No answer takes longer."""
MAX_EVENT_BYTES = 8 * 2**20
"""No event of a watch is larger: an object is 2 MiB at most."""
_POOL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long an API server may take."""

    connect_s: float = 5.0
    """Seconds until it takes the connection."""
    answer_s: float = 15.0
    """Seconds in which something of an answer must arrive."""
    watch_s: float = 60.0
    """Seconds after which the server is to end a watch by itself, a bookmark first. Bookmarks alone
    are no sign of life: of a quiet kind the first one can take two minutes."""
    stall_s: float = 70.0
    """Seconds of silence after which a watch counts as dead; longer than `watch_s`."""


class Transport:
    """Connections to one API server, shared by all threads.

    Parameters
    ----------
    configuration
        Of the official client: address, certificates, token.
    timeouts
        Limits.
    agent
        What the server's log says who asks.
    """

    def __init__(
        self, configuration: Configuration, *, timeouts: Timeouts, agent: str = "retuned-operator"
    ) -> None:
        configuration.connection_pool_maxsize = _POOL
        self.timeouts = timeouts
        self._configuration = configuration
        self._pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        self._agent = agent
        self._named: tuple[tuple[str, str], ...] = ()

    def acting_as(self, user: str, groups: Sequence[str]) -> Transport:
        """Return the same connections, over which everything is asked in somebody's name.

        The API server checks whether this identity may, and then decides as for that person.

        Raises
        ------
        ValueError
            If a name could end a header.
        """
        named = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        if not user or any(not (v.isascii() and v.isprintable()) for _, v in named):
            raise ValueError("names are printable ASCII")
        other = copy.copy(self)
        other._named = named
        return other

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON of an answer.

        Raises
        ------
        ApiError
            What the answer means, or `Unavailable` if there was none.
        """
        what = f"{method} {path}"
        response = self._send(
            method,
            path,
            query=query or {},
            body=None if body is None else json.dumps(body, allow_nan=False).encode(),
            content_type=content_type,
            read_s=self.timeouts.answer_s,
        )
        try:
            text = _bounded(response, what)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._doubt(error)
            raise _no_answer(what, error) from error
        finally:
            response.release_conn()
        answer = _json(text)
        if not 200 <= response.status < 300:
            after = response.headers.get("Retry-After", "")
            raise answered(what, status=response.status, body=answer, retry_after=after)
        if answer is None:
            raise Unavailable(f"{what}: the answer is no JSON", status=response.status)
        return answer

    def text(
        self, path: str, *, query: Mapping[str, str], max_bytes: int, within_s: float
    ) -> bytes:
        """Return an answer that is no JSON, such as a log.

        Parameters
        ----------
        max_bytes
            More of it is an error.
        within_s
            Seconds for all of it: who sends a byte now and then is not waited for.

        Raises
        ------
        ApiError
            As `request`.
        """
        what = f"GET {path}"
        response = self._send(
            "GET", path, query=query, read_s=self.timeouts.answer_s, accept="text/plain, */*"
        )
        try:
            bound = max_bytes if response.status == 200 else None  # a refusal may be longer
            found = _bounded(response, what, max_bytes=bound, within_s=within_s)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer(what, error) from error
        finally:
            response.release_conn()
        if response.status == 200:
            return found
        after = response.headers.get("Retry-After", "")
        raise answered(what, status=response.status, body=_json(found), retry_after=after)

    def stream(self, path: str, *, query: Mapping[str, str]) -> Stream:
        """Return an answer that goes on, one JSON object a line.

        Raises
        ------
        ApiError
            As `request`.
        """
        what = f"GET {path}"
        response = self._send("GET", path, query=query, read_s=self.timeouts.stall_s)
        if response.status == 200:
            return Stream(response, what, doubt=self._doubt)
        try:
            body = _json(_bounded(response, what))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer(what, error) from error
        finally:
            response.release_conn()
        after = response.headers.get("Retry-After", "")
        raise answered(what, status=response.status, body=body, retry_after=after)

    def close(self) -> None:
        """Close all connections that nobody uses."""
        self._pool.clear()

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        read_s: float,
        body: bytes | None = None,
        content_type: str = "",
        accept: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        headers = HTTPHeaderDict({"Accept": accept, "User-Agent": self._agent})
        if body is not None:
            headers["Content-Type"] = content_type
        headers.update(self._credentials(f"{method} {path}"))
        for name, value in self._named:
            headers.add(name, value)
        url = f"{self._configuration.host}{path}"
        if query:
            url += f"?{urlencode(query)}"
        try:
            return self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=self.timeouts.connect_s, read=read_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._doubt(error)
            raise _no_answer(f"{method} {path}", error) from error

    def _doubt(self, error: Exception) -> None:
        """After a silence, drop the connections that nobody uses: they have fallen silent too.

        Each of them would cost a request its whole patience.
        """
        if isinstance(error, urllib3.exceptions.TimeoutError):
            self._pool.clear()

    def _credentials(self, what: str) -> dict[str, str]:
        """Return the header that says who asks; empty where a certificate does."""
        try:
            bearer = self._configuration.auth_settings().get("BearerToken")  # renews what is old
        except (kubernetes_config.ConfigException, OSError, ValueError) as error:
            raise _no_answer(f"{what}: the token cannot be read", error) from error
        return {"Authorization": str(bearer["value"])} if bearer and bearer["value"] else {}


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
            raise _no_answer(self._what, error) from error

    def interrupt(self) -> None:
        """End it from another thread: who waits for more wakes up with `Unavailable`."""
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
        found = _json(line)
        if found is None:
            raise Unavailable(f"{self._what}: an event is no JSON")
        return found


def configuration_of(
    kubeconfig: Path | None = None, *, context: str | None = None
) -> Configuration:
    """Return how to reach an API server, and as whom.

    Parameters
    ----------
    kubeconfig
        None means: the service account inside a pod, and elsewhere what ``KUBECONFIG`` says.
    context
        One of its contexts; None means the current one.

    Raises
    ------
    UsageError
        If nothing says where the API server is, or it cannot be read.
    """
    found = Configuration()
    of = "" if kubeconfig is None else f" by {printable(str(kubeconfig))}"
    try:
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes_config.load_incluster_config(client_configuration=found)
        else:
            kubernetes_config.load_kube_config(
                config_file=None if kubeconfig is None else str(kubeconfig),
                context=context,
                client_configuration=found,
                persist_config=False,
            )
    except (kubernetes_config.ConfigException, OSError, yaml.YAMLError, ValueError) as error:
        text = f"no way to an API server{of}: {printable(str(error))[:300]}"
        raise UsageError(text) from error
    except (AttributeError, KeyError, TypeError) as error:  # the client does not look before
        text = f"no way to an API server{of}: the kubeconfig has another shape"
        raise UsageError(text) from error
    return found


def _bounded(
    response: urllib3.BaseHTTPResponse,
    what: str,
    *,
    max_bytes: int | None = None,
    within_s: float = MAX_ANSWER_S,
) -> bytes:
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


def _json(text: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON that is an object; None for anything else."""
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_answer(what: str, error: Exception) -> Unavailable:
    return Unavailable(f"{what}: {type(error).__name__}: {printable(str(error))[:300]}")
