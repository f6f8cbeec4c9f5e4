"""What the page answers with where it cannot show or do what was asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from retuned.errors import (
    MissingDependency,
    RetunedError,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.review import html as rendering
from retuned.review.requests import KEY_MAX, STATUS

log = logging.getLogger(__name__)


def failed(request: Request, error: Exception) -> Response:
    """Answer with an error of ours: what happened, in its own words."""
    assert isinstance(error, RetunedError), "registered for it"
    status = STATUS.get(error.code, 409)
    if isinstance(error, TemporaryError | MissingDependency):
        status = 503
    elif isinstance(error, UsageError):
        status = 422
    elif isinstance(error, UnreadableInput):
        status = 500
        log.error("review page: %s", error)
    said = error.message[:1].upper() + error.message[1:]
    return _message(request, status, said, code=error.code)


def not_here(request: Request, error: Exception) -> Response:
    """Answer that nothing is there, or not for this way of asking."""
    assert isinstance(error, HTTPException), "registered for it"
    said = error.detail
    if error.status_code == 405:
        said = "This address shows, or takes a form; it does nothing else."
    return _message(request, error.status_code, said, code="", headers=error.headers or {})


def broken(request: Request, error: Exception) -> Response:
    """Answer that something is wrong with the page itself; the log says what."""
    log.error("review page: %s %s", request.method, request.url.path, exc_info=error)
    return _message(request, 500, "Something went wrong here; see the log.", code="failed")


def _message(
    request: Request,
    status: int,
    said: str,
    *,
    code: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    key = request.path_params.get("key", "") if request.method == "POST" else ""
    text = rendering.render(
        "message.html", path=request.url.path, said=said, code=code, key=str(key)[:KEY_MAX]
    )
    answer = html(text, status=status)
    answer.headers.update(headers or {})
    return answer


def html(text: str, *, status: int = 200) -> HTMLResponse:
    """Return a page that browsers and proxies must not store."""
    return HTMLResponse(text, status_code=status, headers={"cache-control": "no-store"})
