"""Transcript of a conversation with a model: one JSON line per event, appended and synced.

Lines are ``asked`` (before a try, so that a kill cannot hide its cost), ``answered`` and
``failed``. A file belongs to one conversation and to one writer at a time. A line torn by a kill is
skipped; its try counts as paid.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import weakref
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from retuned.contract import Digest
from retuned.errors import Refused, TemporaryError
from retuned.files import make_private
from retuned.lab.llm.budget import Usage
from retuned.ports import ChatAnswer, ChatMessage, ChatRequest

log = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**20
_MAX_LINE_BYTES = 16 * 2**20
_RETRY_S = 60.0


class TranscriptFull(Refused):
    """The transcript has no space for another answer; the question was not sent."""

    code = "transcript-full"


class Transcript:
    """One conversation's file, open for appending.

    It is created on first use, readable by its owner only, and limited to `max_bytes`.

    Raises
    ------
    TemporaryError
        If another process writes to it.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        make_private(path.parent)
        self._path = path
        self._max_bytes = max_bytes
        self._file = os.open(
            path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._release = weakref.finalize(self, os.close, self._file)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._release()
            raise TemporaryError(
                f"another process writes to the transcript {path.name}", delay_s=_RETRY_S
            ) from error
        self.spent = Usage()
        """Tokens so far; unfinished tries count with their bound."""
        self.spent_usd = 0.0
        self.answers: dict[Digest, ChatAnswer] = {}
        """Answers by the digest of their question."""
        self.exchanges: list[tuple[ChatRequest, ChatAnswer]] = []
        self._requests: dict[Digest, ChatRequest] = {}
        self._open: dict[tuple[str, int], tuple[Usage, float]] = {}
        self._attempts: dict[Digest, int] = {}
        for line in _lines(path):
            self._take(line)
        for usage, usd in self._open.values():
            self.spent, self.spent_usd = self.spent + usage, self.spent_usd + usd
        self._mend()

    def close(self) -> None:
        self._release()  # a second time it does nothing

    def room(self, wanted_bytes: int) -> None:
        """Require space for this many bytes.

        Raises
        ------
        TranscriptFull
            If there is not enough space.
        """
        size = os.fstat(self._file).st_size
        if size + wanted_bytes > self._max_bytes:
            raise TranscriptFull(
                f"the transcript {self._path.name} has {size} of {self._max_bytes} bytes"
            )

    def asked(
        self, request: ChatRequest, *, at: datetime, model: str, bound: Usage, usd: float
    ) -> int:
        digest = request.digest
        attempt = self._attempts.get(digest, 0)
        line: dict[str, Any] = {
            "event": "asked",
            "at": at.isoformat(),
            "request": digest,
            "attempt": attempt,
            "model": model,
            "bound": [bound.prompt_tokens, bound.completion_tokens],
            "usd": usd,
        }
        if digest not in self._requests:
            line["purpose"] = dict(request.purpose)
            line["max_tokens"] = request.max_tokens
            line["messages"] = [[m.role, m.content] for m in request.messages]
        self._append(line)
        self._requests[digest] = request
        self._attempts[digest] = attempt + 1
        return attempt

    def answered(self, answer: ChatAnswer, *, attempt: int, at: datetime, guessed: bool) -> None:
        """Record an answer; the question is not sent again."""
        self._append(
            {
                "event": "answered",
                "at": at.isoformat(),
                "request": answer.request,
                "attempt": attempt,
                "finish": answer.finish,
                "usage": [answer.prompt_tokens, answer.completion_tokens],
                "guessed": guessed,
                "usd": answer.usd,
                "text": answer.text,
            }
        )
        self._keep(answer)

    def failed(
        self, digest: Digest, *, attempt: int, at: datetime, code: str, usage: Usage, usd: float
    ) -> None:
        self._append(
            {
                "event": "failed",
                "at": at.isoformat(),
                "request": digest,
                "attempt": attempt,
                "code": code,
                "usage": [usage.prompt_tokens, usage.completion_tokens],
                "usd": usd,
            }
        )

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def _keep(self, answer: ChatAnswer) -> None:
        request = self._requests.get(answer.request)
        if request is not None and answer.request not in self.answers:
            self.answers[answer.request] = answer
            self.exchanges.append((request, answer))

    def _take(self, line: Mapping[str, Any]) -> None:
        try:
            key = str(line["request"]), int(line["attempt"])
            usd = max(0.0, float(line["usd"]))
            if line["event"] == "asked":
                self._attempts[key[0]] = max(self._attempts.get(key[0], 0), key[1] + 1)
                self._open[key] = _usage(line["bound"]), usd
                if "messages" in line:
                    self._requests[key[0]] = _request(line)
                return
            usage = _usage(line["usage"])
            self._open.pop(key, None)
            self.spent, self.spent_usd = self.spent + usage, self.spent_usd + usd
            if line["event"] == "answered":
                self._keep(_answer(line, usage, usd))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("invalid line skipped: transcript=%s: %s", self._path.name, error)

    def _mend(self) -> None:
        """End a line torn by a kill, so that the next line is separate."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")


def spent_since(folder: Path, since: datetime) -> float:
    total = 0.0
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        if path.stat().st_mtime < since.timestamp():
            continue
        tries: dict[tuple[str, str], float] = {}
        for line in _lines(path):
            try:
                if datetime.fromisoformat(str(line["at"])) >= since:
                    # the reservation is replaced by the actual cost
                    tries[str(line["request"]), str(line["attempt"])] = float(line["usd"])
            except (KeyError, TypeError, ValueError):
                continue
        total += sum(usd for usd in tries.values() if usd > 0.0)
    return total


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as stream:
        while True:
            data = stream.readline(_MAX_LINE_BYTES)
            if not data:
                return
            try:
                line = json.loads(data)
            except (ValueError, RecursionError):
                log.warning("torn line skipped: transcript=%s", path.name)
                continue
            if isinstance(line, dict):
                yield line


def _usage(pair: Any) -> Usage:  # noqa: ANN401 - JSON
    read, written = (int(number) for number in pair)
    if read < 0 or written < 0:
        raise ValueError("tokens below zero")
    return Usage(prompt_tokens=read, completion_tokens=written)


def _request(line: Mapping[str, Any]) -> ChatRequest:
    messages = []
    for role, content in line["messages"]:
        if role not in ("system", "user"):
            raise ValueError(f"a message of {str(role)[:20]!r}")
        messages.append(ChatMessage(role=role, content=str(content)))
    purpose = {
        str(name): value
        for name, value in line["purpose"].items()
        if isinstance(value, (int, str)) and not isinstance(value, bool)
    }
    return ChatRequest(
        messages=tuple(messages), purpose=purpose, max_tokens=int(line["max_tokens"])
    )


def _answer(line: Mapping[str, Any], usage: Usage, usd: float) -> ChatAnswer:
    return ChatAnswer(
        request=str(line["request"]),
        text=str(line["text"]),
        finish=str(line["finish"]),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        usd=usd,
        replayed=True,
    )
