"""Untrusted requests: bodies of JSON, bounded in size and time, and validated strictly.

Answers and errors.

The rate limit of one pod: a token bucket, bounded in memory. Pure but for time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from retuned.api.agent import AgentMessage as SaidRecord
from retuned.api.agent import (
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    ProfileReport,
    ProofPost,
    TunablePost,
    WatchPost,
)
from retuned.errors import Refused, RetunedError, TemporaryError
from retuned.ports import Clock
from retuned_operator.agent_api.authentication import Unknown

S = TypeVar("S", bound=SaidRecord)

READ_WITHIN_S = 20.0
"""Longest time that a body may take to arrive, seconds."""
_DRAINED_BYTES = 8 << 20
MAX_BYTES: dict[type[SaidRecord], int] = {
    Hello: 512 << 10,
    ProfileReport: 4 << 20,
    DriftPost: 4 << 20,
    DefinitionPost: 1 << 20,
    TunablePost: 1 << 20,
    ProofPost: 4 << 20,
    WatchPost: 4 << 20,
    OrderDone: 64 << 10,
}
"""Largest body of each kind."""


class Answered(Exception):
    """Ends a request with a code.

    Parameters
    ----------
    status
        HTTP status.
    code
        Stable code.
    message
        For people.
    retry_after_s
        When the client may retry, seconds; None does not say.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


async def read_body(request: Request, *, limit: int, within_s: float = READ_WITHIN_S) -> bytes:
    """Return a body.

    Raises
    ------
    Answered
        ``not-json``, ``body-encoded``, ``body-too-large``, ``body-too-slow`` or ``body-cut-off``.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Answered(415, "not-json", "the body must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Answered(415, "body-encoded", "the body must not be compressed")
    announced = request.headers.get("content-length", "0")
    too_large = not announced.isascii() or not announced.isdigit() or int(announced[:20]) > limit
    body, drained = bytearray(), 0
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.stream():
                if too_large or len(body) + len(chunk) > limit:
                    # read and drop a little more: a client that sends all before it reads would
                    # not get the answer on a closed connection
                    too_large, drained = True, drained + len(chunk)
                    if drained > _DRAINED_BYTES:
                        break
                else:
                    body += chunk
    except TimeoutError:
        text = f"the body did not arrive within {within_s:.0f} s"
        raise Answered(408, "body-too-slow", text) from None
    except ClientDisconnect:
        raise Answered(400, "body-cut-off", "the connection ended within the body") from None
    if too_large:
        raise Answered(413, "body-too-large", f"the body has more than {limit} bytes")
    return bytes(body)


def parse(kind: type[S], body: bytes) -> S:
    """Read a body: no unknown field, no infinity, no text where a number belongs.

    Raises
    ------
    Answered
        ``body-invalid``, naming the place.
    """
    try:
        from_json(body, allow_inf_nan=False)
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the body"
        raise Answered(422, "body-invalid", f"{where}: {first['msg']}"[:500]) from None
    except ValueError as error:
        raise Answered(422, "body-invalid", f"the body is not JSON: {error}"[:500]) from None


def number_of(request: Request, name: str, *, most: float) -> float:
    """Return a number of the query, 0 where it is absent, and no more than `most`.

    Raises
    ------
    Answered
        422 ``query-invalid``, if it is not a number of at least 0.
    """
    text = request.query_params.get(name, "0")
    try:
        found = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        found = math.nan
    if not 0.0 <= found < math.inf:
        raise Answered(422, "query-invalid", f"{name} is a number from 0 on")
    return min(found, most)


log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

NO_STORE = {"cache-control": "no-store"}
"""Nothing of this is for caches."""
_UNREAD = frozenset({400, 401, 403, 408, 413, 415, 429})
"""Answers that may come before the body has been read."""


def answering(handler: Handler) -> Handler:
    """Turn errors into answers: no client gets a stack trace.

    One of the places where any exception is caught, logged and answered: the API must not die.
    """

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Answered as said:
            return _refusal(said)
        except Refused as error:
            return _refusal(Answered(409, error.code, error.message))
        except TemporaryError as error:
            log.warning("%s waits: %s", request.url.path, error)
            text = "cannot be done now"
            return _refusal(Answered(503, error.code, text, retry_after_s=error.delay_s))
        except RetunedError as error:
            log.error("%s: %s", request.url.path, error)
            return _refusal(Answered(500, error.code, "see the operator's log"))
        except Exception:
            log.exception("%s failed", request.url.path)
            return _refusal(Answered(500, "failed", "see the operator's log"))

    return answer


def _refusal(said: Answered) -> Response:
    headers = dict(NO_STORE)
    if said.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(said.retry_after_s)))
    if said.status in _UNREAD:  # what is left of the body is not waited for
        headers["connection"] = "close"
    if said.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {"error": {"code": said.code, "message": said.message}}
    return JSONResponse(body, status_code=said.status, headers=headers)


def json_answer(text: str) -> Response:
    """Return what was asked for."""
    return Response(text, media_type="application/json", headers=NO_STORE)


def unknown(said: Unknown) -> Answered:
    """Return the error for a request that is not authenticated or not authorized."""
    return Answered(said.status, str(said), _SENTENCES[said])


_SENTENCES = {
    Unknown.TOKEN_MISSING: "the request carries no bearer token",
    Unknown.TOKEN_REFUSED: "the API server does not know this token; it may have ended",
    Unknown.WRONG_AUDIENCE: "the token is not for this API",
    Unknown.NOT_POD_BOUND: "the token is not that of a pod",
    Unknown.POD_UNKNOWN: "no pod of that name exists",
    Unknown.POD_REPLACED: "the pod of that name is another one now",
    Unknown.NO_TARGET: "no TuningTarget selects this pod",
    Unknown.NOT_YOUR_POD: "the record is about another pod",
    Unknown.NOT_YOUR_TARGET: "the record is about another target",
}

_MAX_KEPT = 20_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class RateLimit:
    """Requests of each pod.

    Parameters
    ----------
    clock
        Time.
    per_s
        Requests a second that a pod may make on average.
    burst
        Requests that it may make without a pause.

    Examples
    --------
    >>> from retuned_operator.agent_api.requests import RateLimit
    >>> class Still:
    ...     def now(self): ...
    ...     def monotonic_s(self): return 0.0
    >>> limit = RateLimit(Still(), per_s=1.0, burst=2)
    >>> [limit.wait_s("pod") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        if per_s <= 0.0 or burst < 1:
            raise ValueError(f"a rate of {per_s}/s and a burst of {burst} let nothing pass")
        self._clock = clock
        self._per_s = per_s
        self._burst = float(burst)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, who: str) -> float:
        """Count one request; return 0 where it may go on, else how long to wait, seconds."""
        now = self._clock.monotonic_s()
        bucket = self._buckets.setdefault(who, _Bucket(self._burst, now))
        self._buckets.move_to_end(who)
        while len(self._buckets) > _MAX_KEPT:  # who was not heard of longest has a full one again
            self._buckets.popitem(last=False)
        filled = bucket.left + (now - bucket.at_s) * self._per_s
        bucket.left, bucket.at_s = min(self._burst, filled), now
        if bucket.left >= 1.0:
            bucket.left -= 1.0
            return 0.0
        return (1.0 - bucket.left) / self._per_s
