"""A local HTTP server that answers as endpoints do: good, broken, slow, hostile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def user(self) -> str:
        """What the user's message says."""
        return str(self.body["messages"][-1]["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is sent back; `parts` are sent as they come, and may never end."""

    parts: Iterable[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    raw: bool = False
    """Send the parts without a head."""


Respond = Callable[[Received], Reply]


def chat(
    text: object, *, finish: str = "stop", usage: object = (1000, 100), **headers: str
) -> Reply:
    """Return a well-formed answer."""
    body: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]
    }
    if isinstance(usage, tuple):
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    elif usage is not None:
        body["usage"] = usage
    data = json.dumps(body).encode()
    return Reply(parts=[data], headers=headers, length=len(data))


class Endpoint:
    """A running server; what it received is kept."""

    def __init__(self, respond: Respond) -> None:
        self.received: list[Received] = []
        self.stop = threading.Event()
        received, stop = self.received, self.stop

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", "0"))
                headers = {name.lower(): value for name, value in self.headers.items()}
                message = Received(
                    path=self.path, headers=headers, body=json.loads(self.rfile.read(size))
                )
                received.append(message)
                self._send(respond(message))

            def do_GET(self) -> None:
                received.append(Received(path=self.path, headers={}, body={}))
                self._send(chat("followed"))

            def _send(self, reply: Reply) -> None:
                self.close_connection = True
                try:
                    if not reply.raw:
                        self.send_response(reply.status)
                        headers = {"content-type": "application/json", **reply.headers}
                        for name, value in headers.items():
                            self.send_header(name.replace("_", "-"), value)
                        if reply.length is not None:
                            self.send_header("content-length", str(reply.length))
                        self.send_header("connection", "close")
                        self.end_headers()
                    for part in reply.parts:
                        if stop.is_set():
                            return
                        self.wfile.write(part)
                        self.wfile.flush()
                except OSError:  # the other side has had enough
                    return

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """End it."""
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def endpoint(respond: Respond) -> Iterator[Endpoint]:
    """Run a server that answers by `respond`."""
    server = Endpoint(respond)
    try:
        yield server
    finally:
        server.close()


def in_order(*replies: Reply) -> Respond:
    """Answer with these in order, the last one for ever."""
    left = iter(replies)
    last: list[Reply] = []

    def respond(_: Received) -> Reply:
        reply = next(left, None)
        if reply is not None:
            last[:] = [reply]
        return last[0]

    return respond


def dripping(stop: threading.Event, *, pause_s: float = 0.05) -> Iterator[bytes]:
    """Send one byte at a time until the test is over."""
    while not stop.wait(pause_s):
        yield b" "
