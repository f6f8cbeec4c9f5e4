"""What strangers ask: bodies, bounded in size and time, JSON and nothing else, read strictly."""

from __future__ import annotations

import asyncio
import math
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from retuned.agent_wire import AgentMessage as SaidRecord
from retuned.agent_wire import (
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    ProfileReport,
    WatchPost,
)

S = TypeVar("S", bound=SaidRecord)

READ_WITHIN_S = 20.0
"""Longest time that a body may take to arrive, seconds."""
_DRAINED_BYTES = 8 << 20
MAX_BYTES: dict[type[SaidRecord], int] = {
    Hello: 512 << 10,
    ProfileReport: 4 << 20,
    DriftPost: 4 << 20,
    DefinitionPost: 1 << 20,
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
        When to ask again; None says nothing.
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
                    # a little more is read and thrown away: whoever sends first and reads then
                    # would not see the answer on a connection that was closed
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
        raise Answered(422, "body-invalid", f"is no JSON: {error}"[:500]) from None


def number_of(request: Request, name: str, *, most: float) -> float:
    """Return a number of the query, 0 where it is absent, and no more than `most`.

    Raises
    ------
    Answered
        422 ``query-invalid``, if it is none from 0 on.
    """
    text = request.query_params.get(name, "0")
    try:
        found = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        found = math.nan
    if not 0.0 <= found < math.inf:
        raise Answered(422, "query-invalid", f"{name} is a number from 0 on")
    return min(found, most)
