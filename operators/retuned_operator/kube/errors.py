"""Errors of the API server, as one small tree.

ApiError
├── NotFound        no such object, kind or namespace
├── Conflict        another client wrote first, or another manager owns a field
│   └── AlreadyExists
├── Gone            the version to watch from is too old: list again
├── Forbidden       the operator's role does not allow it
├── Unauthorized    the API server does not authenticate the caller
├── Invalid         the object breaks its schema, a rule or a policy
└── Unavailable     no answer, or not now; carries the delay (also a `TemporaryError`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retuned.errors import RetunedError, TemporaryError

MAX_MESSAGE = 2000
"""Characters of an answer that are kept."""
MAX_DELAY_S = 60.0
"""Seconds that an answer can make the operator wait."""
_DELAY_S = 1.0


class ApiError(RetunedError):
    """The API server refused a request, or did not answer.

    Parameters
    ----------
    message
        Request and answer.
    status
        HTTP status; 0 where there was none.
    reason
        Kubernetes' own code, such as ``AlreadyExists``.
    """

    code = "api-refused"

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ApiError):
    """The object, kind or namespace does not exist."""

    code = "not-found"


class Conflict(ApiError):
    """The object differs from the writer's copy; read it again and decide again."""

    code = "conflict"


class AlreadyExists(Conflict):
    """There is an object of that name."""

    code = "already-exists"


class Gone(ApiError):
    """That version is too old to watch from or to go on listing from."""

    code = "version-gone"


class Forbidden(ApiError):
    """The role of the caller does not allow it."""

    code = "forbidden"


class Unauthorized(ApiError):
    """The API server does not authenticate the caller."""

    code = "unauthorized"


class Invalid(ApiError):
    """The object breaks its schema, one of its rules or an admission policy."""

    code = "object-refused"


class Unavailable(ApiError, TemporaryError):
    """No answer, or none now. What was to be written may or may not have been written.

    Parameters
    ----------
    delay_s
        Seconds to wait at least, as the server asked.
    """

    code = "api-unavailable"
    exit_code = TemporaryError.exit_code

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", delay_s: float = _DELAY_S
    ) -> None:
        RetunedError.__init__(self, message)
        self.status = status
        self.reason = reason
        self.delay_s = delay_s


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
_NOT_NOW = (408, 429)


def answered(what: str, *, status: int, body: object, retry_after: str = "") -> ApiError:
    """Return the error that an answer means.

    Parameters
    ----------
    what
        The request, for the message.
    status
        HTTP status, or the code of an error within a watch.
    body
        JSON of the answer: a ``Status`` object, or anything.
    retry_after
        Header of that name; empty without one.

    Examples
    --------
    >>> body = {"reason": "AlreadyExists", "message": "the job is there"}
    >>> answered("create jobs a", status=409, body=body)
    AlreadyExists('create jobs a: the job is there [409 AlreadyExists]')
    >>> answered("list pods", status=429, body=None, retry_after="7").delay_s
    7.0
    """
    said: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    reason = printable(str(said.get("reason") or ""))[:100]
    message = printable(str(said.get("message") or "no message"))[:MAX_MESSAGE]
    text = f"{what}: {message} [{status}{f' {reason}' if reason else ''}]"
    if status >= 500 or status in _NOT_NOW:
        delay_s = _delay(retry_after, said)
        return Unavailable(text, status=status, reason=reason, delay_s=delay_s)
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(status, ApiError)
    return kind(text, status=status, reason=reason)


def printable(text: str) -> str:
    """Take out what could steer a terminal or forge a line of the log."""
    return "".join(each if each.isprintable() else " " for each in text)


def _delay(retry_after: str, said: Mapping[str, Any]) -> float:
    details = said.get("details")
    asked = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    for each in (retry_after, asked):
        try:
            found = float(each)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if found == found:  # not NaN
            return min(max(found, 0.0), MAX_DELAY_S)
    return _DELAY_S
