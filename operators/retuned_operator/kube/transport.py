"""Requests to an API server: in whose name, over which connection, with which limits.

The official client reads kubeconfigs, tokens that are renewed and certificates, and opens the
connections; this sends JSON over them. Nothing is tried twice here and no redirect is followed: who
asked knows whether asking again is safe.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import config as kubernetes_config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import HTTPHeaderDict

from retuned_operator.kube.errors import Unavailable, answered
from retuned_operator.kube.responses import Stream, bounded, json_of, no_answer

_POOL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long an API server may take."""

    connect_s: float = 5.0
    """Seconds until it takes the connection."""
    answer_s: float = 15.0
    """Seconds in which something of an answer must arrive."""
    watch_s: float = 60.0
    """Seconds after which the server is to end a watch, a bookmark first. Bookmarks alone do not
    show that a watch works: the first one of a quiet kind can take two minutes."""
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
        User agent for the server's log.
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
        """Return the same connections, with every request in another user's name.

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
            text = bounded(response, what)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._doubt(error)
            raise no_answer(what, error) from error
        finally:
            response.release_conn()
        answer = json_of(text)
        if not 200 <= response.status < 300:
            after = response.headers.get("Retry-After", "")
            raise answered(what, status=response.status, body=answer, retry_after=after)
        if answer is None:
            raise Unavailable(f"{what}: the answer is not JSON", status=response.status)
        return answer

    def text(
        self, path: str, *, query: Mapping[str, str], max_bytes: int, within_s: float
    ) -> bytes:
        """Return an answer that is not JSON, such as a log.

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
            found = bounded(response, what, max_bytes=bound, within_s=within_s)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise no_answer(what, error) from error
        finally:
            response.release_conn()
        if response.status == 200:
            return found
        after = response.headers.get("Retry-After", "")
        raise answered(what, status=response.status, body=json_of(found), retry_after=after)

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
            body = json_of(bounded(response, what))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise no_answer(what, error) from error
        finally:
            response.release_conn()
        after = response.headers.get("Retry-After", "")
        raise answered(what, status=response.status, body=body, retry_after=after)

    def close(self) -> None:
        """Close all idle connections."""
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
            raise no_answer(f"{method} {path}", error) from error

    def _doubt(self, error: Exception) -> None:
        """After a timeout, drop the idle connections: they would probably time out too.

        Each of them would cost a request its whole timeout.
        """
        if isinstance(error, urllib3.exceptions.TimeoutError):
            self._pool.clear()

    def _credentials(self, what: str) -> dict[str, str]:
        """Return the header that authenticates; empty if a client certificate does."""
        try:
            bearer = self._configuration.auth_settings().get("BearerToken")  # renews what is old
        except (kubernetes_config.ConfigException, OSError, ValueError) as error:
            raise no_answer(f"{what}: the token cannot be read", error) from error
        return {"Authorization": str(bearer["value"])} if bearer and bearer["value"] else {}
