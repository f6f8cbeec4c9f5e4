"""Where a search package finds its model and its lab: a listener on this machine, for one run.

It speaks as much of OpenAI's interface as packages need, and one path for programs. Whoever asks
must know the run's word. Questions are queued and wait until the generator has its turn; nothing is
answered by itself, so that budget, redaction, transcript and judgement stay where they are.
"""

from __future__ import annotations

import hmac
import json
import logging
import queue
import secrets
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from retuned.ports import ChatMessage, ChatRequest

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2 * 2**20
"""Longest question that is read."""
_MAX_WAITING = 8
_MAX_MESSAGES = 64
_POLL_S = 0.25
"""Seldom: variants are timed while a package waits."""
_READ_S = 30.0


@dataclass(slots=True)
class Question:
    """One question of the package, and the reply that it waits for."""

    path: str
    """``model`` or ``program``."""
    body: Mapping[str, Any]
    """What came."""
    status: int = 503
    """Of the reply."""
    reply: Mapping[str, Any] = field(default_factory=dict)
    """What goes back."""
    replied: threading.Event = field(default_factory=threading.Event)
    """Set when there is a reply."""

    def answer(self, reply: Mapping[str, Any], *, status: int = 200) -> None:
        """Send this."""
        self.status, self.reply = status, reply
        self.replied.set()


class Link:
    """A listener on 127.0.0.1 and the questions that came."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        """Whoever asks must send it."""
        self.questions: queue.Queue[Question] = queue.Queue(maxsize=_MAX_WAITING)
        """In the order in which they came."""
        self._closed = threading.Event()
        self._server = _Server(_handler(self.token, self.questions, self._closed))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), daemon=True, name="backend-link"
        )
        self._thread.start()
        self._finish = weakref.finalize(
            self, _shut, self._server, thread=self._thread, closed=self._closed
        )
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        """Where it listens."""

    def next(self, timeout_s: float) -> Question | None:
        """Return the next question; None if none comes in time."""
        try:
            return self.questions.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening; questions that wait are turned away."""
        self._finish()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_WAITING

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)


def _shut(
    server: ThreadingHTTPServer, *, thread: threading.Thread, closed: threading.Event
) -> None:
    closed.set()
    server.shutdown()
    server.server_close()
    thread.join()


def _handler(
    token: str, questions: queue.Queue[Question], closed: threading.Event
) -> type[BaseHTTPRequestHandler]:
    """Return a handler that queues what may be asked and sends what it is told."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_S  # of a read; the reply may take as long as it does

        def do_POST(self) -> None:
            question = self._question()
            if question is None:
                return
            try:
                questions.put_nowait(question)
            except queue.Full:
                self._send(503, {"error": {"message": "too many questions at once"}})
                return
            while not question.replied.wait(_POLL_S):
                if closed.is_set():
                    break
            self._send(question.status, question.reply)

        def _question(self) -> Question | None:
            """Read a question; one that may not be asked is turned away here."""
            given = self.headers.get("authorization", "").encode("latin-1", "replace")
            path = {"/v1/chat/completions": "model", "/evaluate": "program"}.get(self.path)
            length = self.headers.get("content-length", "")
            size = int(length) if length.isdecimal() and len(length) < 12 else -1
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                self._send(401, {"error": {"message": "not for you"}})
            elif path is None:
                self._send(404, {"error": {"message": "nothing is here"}})
            elif not 0 <= size <= MAX_BODY_BYTES:
                self._send(413, {"error": {"message": "too long, or of unknown length"}})
            else:
                try:
                    body = json.loads(self.rfile.read(size))
                except (ValueError, RecursionError, OSError):
                    body = None
                if isinstance(body, dict):
                    return Question(path, body)
                self._send(400, {"error": {"message": "no JSON object"}})
            return None

        def _send(self, status: int, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # it has gone
                return

        def log_message(self, format: str, *args: object) -> None:
            log.debug("a package asked: %s", format % args)

    return Handler


def read_chat(body: Mapping[str, Any], *, most_tokens: int) -> ChatRequest | None:
    """Return a question to the model; None where it is none.

    Other speakers than the system become the user: the endpoint sees one question, and nobody
    speaks there in the model's name.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MAX_MESSAGES:
        return None
    read: list[ChatMessage] = []
    for message in messages:
        text = message.get("content") if isinstance(message, dict) else None
        if not isinstance(text, str):
            return None
        role = message.get("role")
        speaker: Literal["system", "user"] = "system" if role == "system" else "user"
        read.append(ChatMessage(role=speaker, content=whole(text)))
    wanted = body.get("max_tokens", body.get("max_completion_tokens"))
    tokens = wanted if type(wanted) is int and 0 < wanted < most_tokens else most_tokens
    return ChatRequest(messages=tuple(read), max_tokens=tokens)


def whole(text: str) -> str:
    r"""Replace halves of characters, which JSON can carry and no file can.

    Examples
    --------
    >>> whole("a\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode()
