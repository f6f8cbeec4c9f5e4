"""Somebody at the other end of a channel, over a real connection: takes what is sent, or not."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retuned.contract import Guard, TrustClass
from retuned.notify.messages import Notice, Place, awaiting, settled
from retuned.stages.gate import GateDecision, GateReason, GateState
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.verdict import Interval

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
ID = "sha256:" + "ab" * 32
ARTIFACT = "sha256:" + "cd" * 32
PLACE = Place(review_url=lambda id: f"https://review.example/proposals/{id[7:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One request."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Ear:
    """Answers as it is told, 200 by default."""

    url: str = ""
    took: list[Took] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)

    def will(self, status: int, *, body: bytes = b"", **headers: str) -> None:
        self.answers.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, body))


@contextmanager
def listening() -> Iterator[Ear]:
    ear = Ear()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): text for name, text in self.headers.items()}
            ear.took.append(Took(path=self.path, headers=headers, raw=raw))
            status, more, body = ear.answers.pop(0) if ear.answers else (200, {}, b'{"ok": true}')
            self.send_response(status)
            for name, text in more.items():
                self.send_header(name, text)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who has read enough goes away
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ear.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield ear
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hanging(*, drip: bytes = b"", every_s: float = 0.05) -> Iterator[str]:
    """Take connections and requests, and never answer them; a drip is sent byte by byte first."""
    over = threading.Event()

    def hold(taken: socket.socket) -> None:
        with taken, suppress(OSError):
            for byte in itertools.chain(drip, itertools.repeat(ord("x"))) if drip else ():
                if over.wait(every_s):
                    return
                taken.sendall(bytes([byte]))
            over.wait(60.0)

    def listen() -> None:
        while not over.is_set():
            with suppress(OSError):
                taken = server.accept()[0]
                held.append(threading.Thread(target=hold, args=(taken,), daemon=True))
                held[-1].start()

    held: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            for each in (thread, *held):
                each.join()


def proposal(**changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "id": ID,
        "target": "chat",
        "definition": "linear_w8",
        "artifact": ARTIFACT,
        "baseline": "sha256:" + "00" * 32,
        "guard": Guard(bounds={"M": (16, 512)}),
        "speedup": Interval(lower=1.5, point=1.6, upper=1.7, confidence=0.99),
        "share": 0.4,
        "expected_saving": 0.13,
        "risk": Risk.MEDIUM,
        "risk_reasons": ("touches 40% of kernel time",),
        "trust": TrustClass.PARAMETERS,
        "evidence": "sha256:" + "ee" * 32,
        "experiment": "plan",
        "requested_by": "retuned",
        "created_at": NOW - timedelta(minutes=10),
        "expires_at": NOW + timedelta(hours=24),
    }
    return Proposal(**(values | changes))


def gate(one: Proposal, **changes: Any) -> GateDecision:
    values: dict[str, Any] = {
        "proposal": one.id,
        "digest": one.artifact,
        "state": GateState.WAITING,
        "reason": GateReason.MISSING_APPROVALS,
        "policy": "default/two",
        "required": 2,
        "missing": 2,
        "missing_from": ("group sre-oncall",),
        "evaluated_at": NOW,
    }
    return GateDecision(**(values | changes))


def asked(round: int = 0, *, now: datetime = NOW, **changes: Any) -> Notice:
    one = proposal(**changes)
    found = awaiting(one, gate(one), place=PLACE, round=round, now=now)
    assert found is not None
    return found


def closed(round: int = 0, *, now: datetime = NOW, **changes: Any) -> Notice:
    one = proposal(**changes)
    return settled(one, phase="approved", by="ada", place=PLACE, round=round, now=now)
