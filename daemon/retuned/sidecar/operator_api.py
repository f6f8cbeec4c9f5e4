"""The operator's agent API over HTTPS: the `Operator` port of a sidecar.

The token is read from its file for each request, because the kubelet renews it there; so is the
certificate authority, when it changes. Redirects are refused and proxies of the environment are not
used. Answers are bounded in size and time, and read strictly.

An artifact from the wire, written to files; it is not verified yet.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from retuned.api.agent import (
    MAX_ARTIFACT_BYTES,
    MAX_BUNDLE_LINE_BYTES,
    MAX_WAIT_S,
    Ack,
    Bundle,
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    Orders,
    ProfileReport,
    ProofPost,
    Report,
    TunablePost,
    Welcome,
    wire_json,
)
from retuned.contract import Digest, Record
from retuned.errors import Refused, TemporaryError, UnreadableInput, UsageError
from retuned.files import read_plain


def take_bundle(digest: Digest, chunks: Iterable[bytes], *, folder: Path) -> Bundle:
    """Write the files of a bundle into an empty folder; never more than was announced.

    Parameters
    ----------
    digest
        The artifact that was asked for.
    chunks
        The answer, in pieces of any size.
    folder
        Empty, this user's.

    Raises
    ------
    UnreadableInput
        ``bundle-invalid`` (its first line), ``bundle-corrupt`` (its bytes) or ``bundle-cut-off``.
    Refused
        ``artifact-too-large``.
    OSError
        If a file cannot be written.
    """
    pieces = iter(chunks)
    line, rest = _line(pieces, digest)
    try:
        bundle = Bundle.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise _bad("bundle-invalid", digest, f"first line: {error.error_count()} faults") from None
    if bundle.digest != digest:
        raise _bad("bundle-invalid", digest, f"another came, {bundle.digest}")
    if bundle.size_bytes > MAX_ARTIFACT_BYTES:
        refused = Refused(f"{digest} has {bundle.size_bytes} bytes")
        refused.code = "artifact-too-large"
        raise refused
    source = _Bytes(rest, pieces)
    for name, said in bundle.files.items():
        _write(folder / name, source, size=said.size_bytes, sha256=said.sha256, digest=digest)
    if source.take(1):
        raise _bad("bundle-corrupt", digest, "more bytes came than were announced")
    return bundle


class _Bytes:
    """What comes, in pieces that are asked for."""

    def __init__(self, first: bytes, pieces: Iterator[bytes]) -> None:
        self._held = first
        self._pieces = pieces

    def take(self, most: int) -> bytes:
        """Return some bytes, at most so many; empty at the end."""
        while not self._held:
            following = next(self._pieces, None)
            if following is None:
                return b""
            self._held = following
        taken, self._held = self._held[:most], self._held[most:]
        return taken


def _line(pieces: Iterator[bytes], digest: Digest) -> tuple[bytes, bytes]:
    held = b""
    while b"\n" not in held:
        following = next(pieces, None)
        if following is None or len(held) > MAX_BUNDLE_LINE_BYTES:
            raise _bad("bundle-invalid", digest, "it does not begin with a line of JSON")
        held += following
    line, _, rest = held.partition(b"\n")
    if len(line) > MAX_BUNDLE_LINE_BYTES:
        raise _bad("bundle-invalid", digest, "its first line is too long")
    return line, rest


def _write(path: Path, source: _Bytes, *, size: int, sha256: str, digest: Digest) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    found, left = hashlib.sha256(), size
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        while left:
            piece = source.take(left)
            if not piece:
                text = f"{path.name} ends {left} bytes too early"
                raise _bad("bundle-cut-off", digest, text)
            file.write(piece)
            found.update(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    if found.hexdigest() != sha256:
        raise _bad("bundle-corrupt", digest, f"{path.name} does not have the announced digest")


def _bad(code: str, digest: Digest, message: str) -> UnreadableInput:
    return UnreadableInput(code, where=digest, message=message)


R = TypeVar("R", bound=Record)

_CONNECT_S = 5.0
_ANSWER_S = 20.0
_ARTIFACT_S = 120.0
_MAX_ANSWER_BYTES = 4 << 20
_MAX_TOKEN_BYTES = 16 << 10
_MAX_CA_BYTES = 1 << 20
_RETRY_S = 5.0
_TOKEN_RETRY_S = 10.0
_MAX_DELAY_S = 60.0
_NOT_NOW = frozenset({408, 425, 429})


class OperatorApi:
    """Talks to one operator; safe for threads.

    Parameters
    ----------
    url
        Base address, ``https://...``.
    token_file
        File of the projected token.
    ca_file
        PEM of the authority that signs the operator's certificate; None takes the machine's.

    Raises
    ------
    UsageError
        If the address is invalid, or would send the token without encryption.
    """

    def __init__(self, url: str, *, token_file: Path, ca_file: Path | None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.username or parts.query:
            raise UsageError(f"agent_url is written https://host:port, not {url[:80]!r}")
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._ca_file = ca_file
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._ca: bytes | None = None

    def hello(self, hello: Hello) -> Welcome:
        """Say who is here; see `Operator.hello`."""
        return self._json("POST", "/v1/hello", body=hello, answer=Welcome)

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        """Tell something; see `Operator.post`."""
        path = _PATHS.get(type(report), "/v1/watch")
        return self._json("POST", path, body=report, traceparent=traceparent, answer=Ack)

    def orders(self, *, after: int, wait_s: float) -> Orders:
        """Return what this pod is to have; see `Operator.orders`."""
        wait_s = min(max(wait_s, 0.0), MAX_WAIT_S)
        asked = "traces=1&proofs=1&alarms=1&overhead=1&boot=1"
        path = f"/v1/orders?after={after}&wait={wait_s:g}&{asked}"
        return self._json("GET", path, answer=Orders, within_s=wait_s + _ANSWER_S)

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        """Tell what became of an order; see `Operator.done`."""
        path = f"/v1/orders/{quote(said.order, safe='')}/done"
        self._request("POST", path, body=said, traceparent=traceparent)

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        """Write an artifact's files; see `Operator.artifact`."""
        path = f"/v1/artifacts/{quote(digest, safe='')}"
        with self._open("GET", path, within_s=_ARTIFACT_S) as response:
            take_bundle(digest, _chunks(response, within_s=_ARTIFACT_S), folder=folder)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- one request ------------------------------------------------------------------------------

    def _json(
        self,
        method: str,
        path: str,
        *,
        answer: type[R],
        body: Record | None = None,
        traceparent: str = "",
        within_s: float = _ANSWER_S,
    ) -> R:
        said = self._request(method, path, body=body, traceparent=traceparent, within_s=within_s)
        try:
            return answer.model_validate_json(said)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the answer"
            message = f"{place}: {first['msg']}; are both sides of one release?"[:400]
            raise UnreadableInput("answer-invalid", where=path, message=message) from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Record | None = None,
        traceparent: str = "",
        within_s: float = _ANSWER_S,
    ) -> bytes:
        with self._open(
            method, path, body=body, traceparent=traceparent, within_s=within_s
        ) as response:
            return _whole(response, within_s=within_s)

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        *,
        within_s: float,
        body: Record | None = None,
        traceparent: str = "",
    ) -> Iterator[httpx.Response]:
        headers = {"authorization": f"Bearer {self._token()}", "accept-encoding": "identity"}
        if traceparent:
            headers["traceparent"] = traceparent
        content = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = wire_json(body).encode()
        timeout = httpx.Timeout(within_s, connect=_CONNECT_S)
        try:
            with self._connected().stream(
                method, self._url + path, headers=headers, content=content, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise _refusal(response, path)
                yield response
        except httpx.HTTPError as error:
            text = f"the operator does not answer {path.partition('?')[0]}: {type(error).__name__}"
            raise TemporaryError(f"{text} {error}"[:400], delay_s=_RETRY_S) from error

    def _token(self) -> str:
        data = _read(self._token_file, _MAX_TOKEN_BYTES, what="token")
        token = data.decode("ascii", "replace").strip()
        if not token or not token.isprintable() or " " in token:
            raise TemporaryError(f"{self._token_file} holds no token", delay_s=_TOKEN_RETRY_S)
        return token

    def _connected(self) -> httpx.Client:
        """Return the client; a new one where the authority has changed."""
        ca = None
        if self._ca_file is not None:
            ca = _read(self._ca_file, _MAX_CA_BYTES, what="certificate authority")
        with self._lock:
            if self._client is None or ca != self._ca:
                former, self._client, self._ca = self._client, _client(ca, self._ca_file), ca
                if former is not None:
                    former.close()
            return self._client


_PATHS: dict[type[Record], str] = {
    ProfileReport: "/v1/profiles",
    DriftPost: "/v1/drift",
    DefinitionPost: "/v1/definitions",
    TunablePost: "/v1/tunables",
    ProofPost: "/v1/proofs",
}


def _client(ca: bytes | None, path: Path | None) -> httpx.Client:
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            text = f"{path} holds no certificate in PEM ({error})"
            raise TemporaryError(text, delay_s=_TOKEN_RETRY_S) from error
    return httpx.Client(
        verify=context,
        follow_redirects=False,
        trust_env=False,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=60.0),
    )


def _read(path: Path, limit: int, *, what: str) -> bytes:
    """Read a file that the kubelet writes; one that is not there yet may come."""
    try:
        data = read_plain(path, max_bytes=limit)
    except OSError as error:
        text = f"{path}: the {what} cannot be read ({error.strerror})"
        raise TemporaryError(text, delay_s=_TOKEN_RETRY_S) from error
    if data is None:
        raise TemporaryError(f"{path} is too large for a {what}", delay_s=_TOKEN_RETRY_S)
    return data


def _chunks(response: httpx.Response, *, within_s: float) -> Iterator[bytes]:
    until_s = time.monotonic() + within_s
    for chunk in response.iter_raw():
        if time.monotonic() > until_s:
            raise TemporaryError("the operator's answer takes too long", delay_s=_RETRY_S)
        yield chunk


def _whole(response: httpx.Response, *, within_s: float) -> bytes:
    body = bytearray()
    for chunk in _chunks(response, within_s=within_s):
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            message = f"has more than {_MAX_ANSWER_BYTES} bytes"
            raise UnreadableInput("answer-too-large", where=str(response.url), message=message)
    return bytes(body)


def _refusal(response: httpx.Response, path: str) -> Refused | TemporaryError:
    status = response.status_code
    code, message = _error_of(_whole(response, within_s=_ANSWER_S))
    text = f"{path.partition('?')[0]}: {message or 'no reason given'} [{status} {code}]"
    if status == 401:
        waits = TemporaryError(text, delay_s=_TOKEN_RETRY_S)
    elif status >= 500 or status in _NOT_NOW:
        waits = TemporaryError(text, delay_s=_delay_s(response.headers.get("retry-after")))
    else:
        refused = Refused(text)
        refused.code = "redirected" if 300 <= status < 400 else code or f"status-{status}"
        return refused
    waits.code = code or "temporary"
    return waits


def _error_of(body: bytes) -> tuple[str, str]:
    """Return code and message of a refusal; empty if they cannot be read."""
    try:
        said = _Refusal.model_validate_json(body).error
    except ValidationError:
        return "", ""
    message = "".join(each if each.isprintable() else " " for each in said.message)
    return said.code, message[:300]


class _Error(Record):
    code: str
    message: str


class _Refusal(Record):
    error: _Error


def _delay_s(header: str | None) -> float:
    if header is None or not header.isascii() or not header.isdigit() or len(header) > 6:
        return _RETRY_S
    return min(max(float(header), 1.0), _MAX_DELAY_S)
