"""The webhook's door: bounds on size and time, and no pod that is refused because of us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from retuned.errors import UnreadableInput
from retuned_operator.manifests.settings import SidecarSettings
from retuned_operator.webhook.review import MAX_REVIEW_BYTES, admitted, answer, parse

log = logging.getLogger(__name__)

PATH = "/mutate-v1-pod"
"""Where the API server asks."""
READ_S = 4.0
"""Seconds in which a review must have come; the API server waits 5."""


def application(
    settings: SidecarSettings, *, count: Callable[[str], None] = lambda _: None
) -> Starlette:
    """Return the webhook as an ASGI application.

    Parameters
    ----------
    settings
        How the sidecar looks.
    count
        Told of every review what became of it, one of a small number of stable codes.
    """

    async def mutate(request: Request) -> Response:
        try:
            async with asyncio.timeout(READ_S):
                text = await _bounded(request)
        except (TimeoutError, ClientDisconnect):
            count("too-slow")
            return PlainTextResponse("the review did not come in time", status_code=408)
        if text is None:
            count("too-large")
            return PlainTextResponse("the review is too large", status_code=413)
        return _answered(text, settings, count)

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(
        routes=[
            Route(PATH, mutate, methods=["POST"]),
            Route("/healthz", healthy, methods=["GET"]),
        ]
    )


def _answered(text: bytes, settings: SidecarSettings, count: Callable[[str], None]) -> Response:
    try:
        review = parse(text)
    except UnreadableInput as error:
        log.warning("a review that cannot be read: %s", error)
        count(error.code)
        return PlainTextResponse(str(error), status_code=400)
    try:
        found = answer(review, settings=settings)
    except Exception:  # whatever is wrong with us, pods start
        log.exception("a pod is admitted as it is")
        found = admitted(review)
    count(found.outcome)
    log.info("pod %s: %s", found.subject, found.outcome)
    return JSONResponse(found.body)


async def _bounded(request: Request) -> bytes | None:
    """Return the body; None where it is larger than is read."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_REVIEW_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)
