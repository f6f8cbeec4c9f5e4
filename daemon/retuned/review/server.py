"""Serves the pages on one address of this machine, in a separate thread."""

from __future__ import annotations

import ipaddress
import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from retuned.errors import TemporaryError, UsageError

_END_S = 5.0
_MAX_AT_ONCE = 64
"""Requests that the server handles at the same time; it answers further ones with 503."""
_RETRY_S = 5.0


def place_of(text: str, *, what: str = "review") -> tuple[str, int]:
    """Read ``HOST:PORT`` of an address that only this machine reaches.

    Parameters
    ----------
    text
        As a person wrote it.
    what
        The setting's name, for messages.

    Raises
    ------
    UsageError
        If it is not such an address; a page for others belongs behind the operator and its proxy.

    Examples
    --------
    >>> place_of("127.0.0.1:9476"), place_of("[::1]:0"), place_of("localhost:9476")
    (('127.0.0.1', 9476), ('::1', 0), ('127.0.0.1', 9476))
    """
    host, colon, port = text.strip().rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise UsageError(f"{what} {text!r:.80}: write HOST:PORT, such as 127.0.0.1:9476")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"{what} {text!r:.80}: the host is an address of this machine alone, such as 127.0.0.1"
        ) from None
    if not address.is_loopback:
        raise UsageError(
            f"{what} {text!r:.80}: others could reach that address, and nothing there says who "
            "they are. Use 127.0.0.1 and forward the port (`ssh -L 9476:127.0.0.1:9476 machine`)"
        )
    return str(address), int(port)


def names_of(host: str, port: int) -> frozenset[str]:
    """Return what browsers may call an address of this machine alone.

    Examples
    --------
    >>> sorted(names_of("::1", 9476))
    ['[::1]:9476', 'localhost:9476']
    """
    written = f"[{host}]" if ":" in host else host
    return frozenset({f"{written}:{port}", f"localhost:{port}"})


class PageServer:
    """Serves an ASGI application over plain HTTP.

    Parameters
    ----------
    host, port
        Where; port 0 is any that is free, see `port`. It is bound at once, so that an address that
        is taken is found before anything else begins.
    what
        What is served, for messages.

    Raises
    ------
    TemporaryError
        If the address is taken or cannot be had.
    """

    def __init__(self, host: str, port: int, *, what: str = "review page") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            text = f"{what}: cannot listen on {host}:{port} ({error.strerror})"
            raise TemporaryError(text, delay_s=_RETRY_S) from error
        # connections inherit it; without it an answer's body waits 40 ms for its head to be taken
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._what = what
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._socket.getsockname()[1])

    def start(self, app: ASGIApp) -> None:
        """Begin to answer."""
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_AT_ONCE,
            timeout_graceful_shutdown=int(_END_S / 2),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name=self._what.replace(" ", "-"),
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """End; requests under way get a few seconds."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_END_S)
        self._socket.close()
