"""Language model client with budget and transcript, independent of the transport.

`PaidChatModel` removes secrets, looks the question up among answered ones, reserves money, asks
over a `ChatTransport`, retries where that may help, and records everything. `HttpWire` in
`retuned.lab.llm.http` is the real transport, `ScriptedWire` here the fake one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from retuned.errors import Refused, RetunedError, TemporaryError, UnreadableInput
from retuned.lab.generators.evolve.redaction import Redact, redact
from retuned.lab.llm.budget import RemainingBudget, Usage, bound_of, settled
from retuned.lab.llm.transcript import Transcript
from retuned.ports import ChatAnswer, ChatMessage, ChatRequest, Clock

log = logging.getLogger(__name__)

MAX_ANSWER_CHARS = 1_000_000
_TRIES = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_SHORTEST_S = 1.0
"""With less time than this, no question is sent and paid."""
_ROOM_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WireAnswer:
    """The response of a transport."""

    text: str
    finish: str
    usage: Usage | None
    """As reported; None if it is missing or implausible."""


class WireFailed(RetunedError):
    """A try without an answer.

    `code` is a stable reason. `detail` is for people and may quote the endpoint. `again` says
    whether a retry may help, `billed` whether it may have cost something. `pause_s` is the wait
    that the endpoint requested, or None.
    """

    def __init__(
        self,
        code: str,
        *,
        detail: str,
        again: bool,
        billed: bool = False,
        pause_s: float | None = None,
    ) -> None:
        super().__init__(f"{detail} [{code}]")
        self.code = code
        self.detail = detail
        self.again = again
        self.billed = billed
        self.pause_s = pause_s


class ChatTransport(Protocol):
    """Sends one question to a model, once."""

    model: str

    def ask(self, request: ChatRequest, *, timeout_s: float = math.inf) -> WireAnswer:
        """Return the answer within the given time.

        Raises
        ------
        WireFailed
            If no answer arrives.
        """
        ...


class PaidChatModel:
    """A `ChatModel` over a transport.

    Answers in `transcript` are not requested again. `secrets_out` removes secrets from everything
    sent. `answers_out` removes only certain secrets from answers, because answers hold code.
    `tries` bounds the tries per question. `left_s` returns the seconds that the caller has left,
    over all tries.
    """

    def __init__(
        self,
        wire: ChatTransport,
        *,
        purse: RemainingBudget,
        transcript: Transcript,
        clock: Clock,
        secrets_out: Redact = redact,
        answers_out: Redact = lambda text: text,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = _TRIES,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._wire = wire
        self._purse = purse
        self._transcript = transcript
        self._clock = clock
        self._clean = secrets_out
        self._clean_answer = answers_out
        self._sleep = sleep
        self._tries = tries
        self._left_s = left_s

    def ask(self, request: ChatRequest) -> ChatAnswer:
        clean = dataclasses.replace(
            request,
            messages=tuple(
                ChatMessage(role=m.role, content=self._clean(m.content)) for m in request.messages
            ),
        )
        digest = clean.digest
        known = self._transcript.answers.get(digest)
        if known is not None:
            return known
        for number in range(self._tries):
            try:
                return self._try(clean)
            except WireFailed as error:
                pause_s = _pause(error, digest, number)
                log.info("no answer from the model: code=%s try=%d", error.code, number + 1)
                if not error.again:
                    raise self._refusal(error) from error
                longest_s = min(_LONGEST_PAUSE_S, self._left_s())
                if number + 1 == self._tries or pause_s > longest_s:
                    raise self._giving_up(error, pause_s, number + 1) from error
                self._sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def exchanges(self) -> Sequence[tuple[ChatRequest, ChatAnswer]]:
        return tuple(self._transcript.exchanges)

    def close(self) -> None:
        self._transcript.close()

    def _try(self, request: ChatRequest) -> ChatAnswer:
        bound = bound_of(request)
        left_s = self._left_s()
        if left_s < _SHORTEST_S:
            raise TemporaryError("not enough time is left for a question", delay_s=_LONGEST_PAUSE_S)
        asked_bytes = sum(len(m.content.encode()) for m in request.messages)
        self._transcript.room(2 * asked_bytes + _ROOM_BYTES)
        self._purse.admit(bound)
        attempt = self._transcript.asked(
            request,
            at=self._clock.now(),
            model=self._wire.model,
            bound=bound,
            usd=self._purse.prices.usd(bound),
        )
        try:
            came = self._wire.ask(request, timeout_s=left_s)
            if len(came.text) > MAX_ANSWER_CHARS:
                detail = f"{len(came.text)} characters in one answer"
                raise WireFailed("answer-too-long", detail=detail, again=False, billed=True)
        except WireFailed as error:
            usage = bound if error.billed else Usage()
            self._transcript.failed(
                request.digest,
                attempt=attempt,
                at=self._clock.now(),
                code=error.code,
                usage=usage,
                usd=self._purse.pay(usage),
            )
            raise
        usage, guessed = settled(
            came.usage, bound=bound, answer_bytes=len(came.text.encode("utf-8", "replace"))
        )
        answer = ChatAnswer(
            request=request.digest,
            text=self._clean_answer(came.text.encode("utf-8", "replace").decode()),
            finish=came.finish,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            usd=self._purse.pay(usage),
        )
        self._transcript.answered(answer, attempt=attempt, at=self._clock.now(), guessed=guessed)
        return answer

    def _refusal(self, error: WireFailed) -> Refused:
        refused = Refused(f"the model's endpoint: {self._clean(str(error))}")
        refused.code = "redirected" if error.code == "redirected" else "endpoint-refused"
        return refused

    def _giving_up(
        self, error: WireFailed, pause_s: float, tries: int
    ) -> TemporaryError | UnreadableInput:
        detail = self._clean(error.detail)
        if error.code.startswith("unreadable"):
            return UnreadableInput(
                "unreadable-answer",
                where="the model's endpoint",
                message=f"no try of {tries} brought an answer that can be read: {detail}",
            )
        return TemporaryError(
            f"the model's endpoint did not answer after {tries} tries: {detail} [{error.code}]",
            delay_s=pause_s,
        )


def _pause(error: WireFailed, digest: str, number: int) -> float:
    """Return the wait: the endpoint's request, else twice as long each time.

    Up to a quarter is added, derived from the question's digest. So parallel failures do not retry
    together, and tests are deterministic.
    """
    spread = hashlib.sha256(f"{digest}:{number}".encode()).digest()[0] / 1024.0
    base_s = error.pause_s if error.pause_s is not None else _FIRST_PAUSE_S * 2.0**number
    return base_s * (1.0 + spread)


@dataclass(slots=True)
class ScriptedWire:
    """Returns answers from a list in order, repeating the last; it raises failures in the list."""

    script: Sequence[WireAnswer | WireFailed | str]
    model: str = "scripted"
    asked: list[ChatRequest] = field(default_factory=list)

    def ask(self, request: ChatRequest, *, timeout_s: float = math.inf) -> WireAnswer:
        said = self.script[min(len(self.asked), len(self.script) - 1)]
        self.asked.append(request)
        if isinstance(said, WireFailed):
            raise said
        if isinstance(said, str):
            return WireAnswer(text=said, finish="stop", usage=None)
        return said
