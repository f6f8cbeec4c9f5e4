"""Tokens to callers: reviewed by the API server once, and trusted for at most a minute.

The cache keeps a digest of the token, never the token. A token that ends sooner is trusted until
then. Refusals are cached for a few seconds, so that a sidecar with a bad token cannot make the
operator ask for each of its tries; several requests with one token wait for one answer.

Who speaks: from the answer of a TokenReview to a pod, and what it may speak of. Pure.

TokenReviews by the API server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from anyio import CapacityLimiter, to_thread

from retuned.api.agent import AgentMessage, Hello
from retuned.ports import Clock
from retuned_operator.agent_api.ports import PodRecord, Tokens
from retuned_operator.kube.resources import Resource

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_MAX_CLAIMS_BYTES = 16 << 10


class Unknown(StrEnum):
    """Stable codes for a caller that is refused."""

    TOKEN_MISSING = "token-missing"
    TOKEN_REFUSED = "token-refused"
    WRONG_AUDIENCE = "wrong-audience"
    NOT_POD_BOUND = "not-pod-bound"
    POD_UNKNOWN = "pod-unknown"
    POD_REPLACED = "pod-replaced"
    NO_TARGET = "no-target"
    NOT_YOUR_POD = "not-your-pod"
    NOT_YOUR_TARGET = "not-your-target"

    @property
    def status(self) -> int:
        """HTTP status: 401 where another token may help, else 403."""
        return 401 if self in _TOKEN else 403


_TOKEN = frozenset({Unknown.TOKEN_MISSING, Unknown.TOKEN_REFUSED, Unknown.WRONG_AUDIENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A pod, as its token proves it."""

    namespace: str
    """Namespace of the pod."""
    name: str
    """Name of the pod."""
    uid: str
    """Uid of the pod."""


def bearer(header: str | None) -> str | None:
    """Return the token of an ``Authorization`` header; None where there is none.

    Examples
    --------
    >>> bearer("Bearer abc.def"), bearer("Basic abc"), bearer("Bearer a b"), bearer(None)
    ('abc.def', None, None, None)
    """
    scheme, _, token = (header or "").partition(" ")
    usable = token.isascii() and token.isprintable() and " " not in token
    return token if scheme.lower() == "bearer" and token and usable else None


def caller_of(review: Mapping[str, Any], *, audience: str) -> Caller | Unknown:
    """Read the answer of a TokenReview.

    Parameters
    ----------
    review
        The whole object, or only its ``status``; any unexpected value is refused.
    audience
        Must be among the audiences that the API server found the token to be for.

    Examples
    --------
    >>> extra = {POD_NAME: ["chat-0"], POD_UID: ["u-1"]}
    >>> user = {"username": "system:serviceaccount:serving:chat", "extra": extra}
    >>> said = {"status": {"authenticated": True, "audiences": ["retuned.dev"], "user": user}}
    >>> caller_of(said, audience="retuned.dev")
    Caller(namespace='serving', name='chat-0', uid='u-1')
    >>> str(caller_of(said, audience="another"))
    'wrong-audience'
    """
    status = review.get("status")
    said = status if isinstance(status, Mapping) else {}
    if said.get("authenticated") is not True or said.get("error"):
        return Unknown.TOKEN_REFUSED
    audiences = said.get("audiences")
    if not isinstance(audiences, Sequence) or isinstance(audiences, str):
        return Unknown.WRONG_AUDIENCE
    if audience not in audiences:
        return Unknown.WRONG_AUDIENCE
    user = said.get("user")
    if not isinstance(user, Mapping):
        return Unknown.NOT_POD_BOUND
    namespace = _namespace(user.get("username"))
    name, uid = _only(user.get("extra"), POD_NAME), _only(user.get("extra"), POD_UID)
    if not (namespace and name and uid):
        return Unknown.NOT_POD_BOUND
    return Caller(namespace=namespace, name=name, uid=uid)


def admitted(caller: Caller, pod: PodRecord | None) -> PodRecord | Unknown:
    """Return the pod that a caller is, as the cluster knows it now."""
    if pod is None or (pod.namespace, pod.name) != (caller.namespace, caller.name):
        return Unknown.POD_UNKNOWN
    if pod.uid != caller.uid:
        return Unknown.POD_REPLACED
    return pod if pod.target else Unknown.NO_TARGET


def speaks_for_itself(pod: PodRecord, said: AgentMessage) -> Unknown | None:
    """Return why this pod may not send a record; None if it may."""
    if (said.pod.namespace, said.pod.name, said.pod.uid) != (pod.namespace, pod.name, pod.uid):
        return Unknown.NOT_YOUR_POD
    if isinstance(said, Hello) and not said.target:
        return None  # it asks which one it is
    return None if said.target == pod.target else Unknown.NOT_YOUR_TARGET


def expiry_s(token: str) -> float | None:
    """Return the expiry in a token, seconds since the epoch; None without one.

    It is not verified, since the API server verifies tokens. It can only shorten the caching.
    """
    parts = token.split(".")
    if len(parts) != 3 or len(parts[1]) > _MAX_CLAIMS_BYTES:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    ends = claims.get("exp") if isinstance(claims, dict) else None
    if isinstance(ends, bool) or not isinstance(ends, int | float):
        return None
    return float(ends)


def _namespace(username: object) -> str:
    """Return the namespace of a service account's name; empty for any other user."""
    if not isinstance(username, str) or not username.startswith(_SERVICE_ACCOUNT):
        return ""
    namespace, colon, name = username.removeprefix(_SERVICE_ACCOUNT).partition(":")
    return namespace if colon and name else ""


def _only(extra: object, key: str) -> str:
    """Return the one value of an extra field; empty without a value, or with several."""
    found = extra.get(key) if isinstance(extra, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 1:
        return ""
    return found[0] if isinstance(found[0], str) else ""


MAX_TOKEN_BYTES = 16 << 10
"""Longest token."""
BELIEVED_S = 60.0
"""Longest time that the API server's word is kept, seconds."""
REFUSED_S = 5.0
"""The same, where it was no."""
_MAX_KEPT = 20_000
_ASKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _CachedCaller:
    said: Caller | Unknown
    until_s: float


class Authenticator:
    """Asks who a token belongs to; lives in one event loop.

    Parameters
    ----------
    tokens
        The API server.
    clock
        Time; its wall clock is compared with when tokens say that they end.
    audience
        What tokens must be for.
    """

    def __init__(self, tokens: Tokens, *, clock: Clock, audience: str) -> None:
        self._tokens = tokens
        self._clock = clock
        self._audience = audience
        self._kept: OrderedDict[bytes, _CachedCaller] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller | Unknown]] = {}
        self._limiter = CapacityLimiter(_ASKED_AT_ONCE)

    async def caller(self, token: str | None) -> Caller | Unknown:
        """Return the caller that a token authenticates.

        Raises
        ------
        RetunedError
            If the API server does not answer; no token is accepted meanwhile.
        """
        if token is None or len(token) > MAX_TOKEN_BYTES:
            return Unknown.TOKEN_MISSING if token is None else Unknown.TOKEN_REFUSED
        name = hashlib.sha256(token.encode()).digest()
        kept = self._kept.get(name)
        if kept is not None and self._clock.monotonic_s() < kept.until_s:
            return kept.said
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(name, token))
            self._asking[name] = asking
            asking.add_done_callback(lambda done: self._asked(name, done))
        return await asyncio.shield(asking)  # a client that leaves cancels no shared review

    async def _ask(self, name: bytes, token: str) -> Caller | Unknown:
        answer = await to_thread.run_sync(
            lambda: self._tokens.review(token, audience=self._audience), limiter=self._limiter
        )
        said = caller_of(answer, audience=self._audience)
        self._keep(name, said, for_s=self._for_s(said, token))
        return said

    def _asked(self, name: bytes, done: asyncio.Task[Caller | Unknown]) -> None:
        self._asking.pop(name, None)
        if not done.cancelled():
            done.exception()  # requests that wait raise it; without one, drop it

    def _for_s(self, said: Caller | Unknown, token: str) -> float:
        if isinstance(said, Unknown):
            return REFUSED_S
        ends = expiry_s(token)
        if ends is None:
            return BELIEVED_S
        return min(BELIEVED_S, max(0.0, ends - self._clock.now().timestamp()))

    def _keep(self, name: bytes, said: Caller | Unknown, *, for_s: float) -> None:
        self._kept[name] = _CachedCaller(said, self._clock.monotonic_s() + for_s)
        self._kept.move_to_end(name)
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)


TOKEN_REVIEWS = Resource(
    group="authentication.k8s.io",
    version="v1",
    kind="TokenReview",
    plural="tokenreviews",
    namespaced=False,
)
"""A question, not an object: nothing is kept of it."""


class Creates(Protocol):
    """The part of `retuned_operator.kube.client.Api` that is used."""

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask, and return the answer."""
        ...


class TokenReviews:
    """The `Tokens` port over the API server.

    Parameters
    ----------
    api
        Unguarded: who does not lead may ask as well.
    """

    def __init__(self, api: Creates) -> None:
        self._api = api

    def review(self, token: str, *, audience: str) -> Mapping[str, Any]:
        """Ask; see `Tokens.review`."""
        return self._api.create(TOKEN_REVIEWS, {"spec": {"token": token, "audiences": [audience]}})
