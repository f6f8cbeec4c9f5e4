"""Who speaks: from the answer of a TokenReview to a pod, and what it may speak of. Pure.

A token that is bound to a pod carries the pod's name and uid; the API server says so in the extra
fields of its answer. A token without them, such as a person's or another workload's, is nobody.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from retuned.agent_wire import AgentMessage, Hello
from retuned_operator.agent.ports import PodRecord

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_MAX_CLAIMS_BYTES = 16 << 10


class Unknown(StrEnum):
    """Stable codes for a caller that is not believed."""

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
        The whole object, or only its ``status``; whatever is not as it should be is not believed.
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
    """Return why a record is not this pod's to tell; None where it is."""
    if (said.pod.namespace, said.pod.name, said.pod.uid) != (pod.namespace, pod.name, pod.uid):
        return Unknown.NOT_YOUR_POD
    if isinstance(said, Hello) and not said.target:
        return None  # it asks which one it is
    return None if said.target == pod.target else Unknown.NOT_YOUR_TARGET


def expiry_s(token: str) -> float | None:
    """Return when a token says that it ends, seconds since the epoch; None where it does not say.

    Nothing is verified: the API server does that. It may only shorten how long its word is kept.
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
    """Return the namespace of a service account's name; empty for anybody else."""
    if not isinstance(username, str) or not username.startswith(_SERVICE_ACCOUNT):
        return ""
    namespace, colon, name = username.removeprefix(_SERVICE_ACCOUNT).partition(":")
    return namespace if colon and name else ""


def _only(extra: object, key: str) -> str:
    """Return the one value of an extra field; empty where there is none, or several."""
    found = extra.get(key) if isinstance(extra, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 1:
        return ""
    return found[0] if isinstance(found[0], str) else ""
