"""What is answered, and what is answered when something goes wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retuned.errors import Refused, RetunedError, TemporaryError
from retuned_operator.agent.bodies import Answered
from retuned_operator.agent.identity import Unknown

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

NO_STORE = {"cache-control": "no-store"}
"""Nothing of this is for caches."""
_UNREAD = frozenset({400, 401, 403, 408, 413, 415, 429})
"""Answers that may come before the body has been read."""


def answering(handler: Handler) -> Handler:
    """Turn what goes wrong into an answer: no request of a stranger ends in a trace for strangers.

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
    """Return the answer to somebody who is not believed."""
    return Answered(said.status, str(said), _SENTENCES[said])


_SENTENCES = {
    Unknown.TOKEN_MISSING: "the request carries no bearer token",
    Unknown.TOKEN_REFUSED: "the API server does not know this token; it may have ended",
    Unknown.WRONG_AUDIENCE: "the token is not for this API",
    Unknown.NOT_POD_BOUND: "the token is not that of a pod",
    Unknown.POD_UNKNOWN: "there is no such pod",
    Unknown.POD_REPLACED: "the pod of that name is another one now",
    Unknown.NO_TARGET: "no TuningTarget selects this pod",
    Unknown.NOT_YOUR_POD: "the record is about another pod",
    Unknown.NOT_YOUR_TARGET: "the record is about another target",
}
