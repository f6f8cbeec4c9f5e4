"""A Prometheus that says what a test wrote down, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

Script = Callable[[str, float | None], bytes | int]
"""From query and time to a body, or to an HTTP status without one."""


def vector(*values: str, samples: int | None = 500) -> bytes:
    """Return an answer with a series for each value."""
    result = [{"metric": {"n": str(n)}, "value": [1.0, v]} for n, v in enumerate(values)]
    data: dict[str, Any] = {"resultType": "vector", "result": result}
    if samples is not None:
        data["stats"] = {"samples": {"totalQueryableSamples": samples}}
    return json.dumps({"status": "success", "data": data}).encode()


def said(**data: Any) -> bytes:
    """Return an answer with any data."""
    return json.dumps({"status": "success", "data": data}).encode()


@dataclass
class ScriptedPrometheus:
    """The server; `asked` is what it was asked, query and time."""

    script: Script = lambda query, at: vector()
    asked: list[tuple[str, float | None]] = field(default_factory=list)

    def start(self) -> str:
        """Serve on a free port, and return the address."""
        world = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                form = parse_qs(self.rfile.read(length).decode())
                at = float(form["time"][0]) if "time" in form else None
                assert (self.path, form["stats"]) == ("/api/v1/query", ["all"])
                world.asked.append((form["query"][0], at))
                found = world.script(form["query"][0], at)
                body = b"" if isinstance(found, int) else found
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """End; nobody answers at the address any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)
