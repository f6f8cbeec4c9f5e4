"""What stands before every request: which name was asked for, and headers on every answer."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retuned.web import rendering
from retuned.web.refusing import STATUS


class Guard:
    """Refuses other hosts' names, and says what browsers may do with the answer.

    Parameters
    ----------
    app
        The pages.
    hosts
        Names that may be asked for, in lower case, with their port where it is no usual one.
    open_paths
        Addresses that any name may ask for, such as those of probes.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: frozenset[str], open_paths: frozenset[str] = frozenset()
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._open = open_paths
        self._headers = [
            (name.encode(), value.encode()) for name, value in rendering.HEADERS.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        asked = [value for name, value in scope["headers"] if name == b"host"]
        known = len(asked) == 1 and asked[0].decode("latin-1").lower() in self._hosts
        if known or scope["path"] in self._open:
            await self._app(scope, receive, with_headers)
            return
        said = b"This page is not known by that name.\n"
        status = STATUS["other-host"]
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})
