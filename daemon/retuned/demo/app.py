"""The HTTP side: what a request may be, and the routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retuned.contract import Record
from retuned.demo.engine import Engine
from retuned.demo.metrics import ServerMetrics
from retuned.demo.responses import AnswerResponse, CompletionState, Mailboxes, refusal
from retuned.demo.shapes import ModelShape
from retuned.errors import TemporaryError, UsageError

MAX_BODY_BYTES = 64 * 1024

Token = Annotated[int, Field(strict=True, ge=0)]


class CompletionRequest(Record):
    """Body of ``POST /v1/completions``."""

    prompt_tokens: tuple[Token, ...] = Field(min_length=1)
    """Token ids; text needs a tokenizer, which random weights do not have."""
    max_tokens: int = Field(strict=True, ge=1)
    """Tokens to generate; the model has no end-of-text token, so it generates exactly this many."""
    stream: bool = Field(default=True, strict=True)
    """Server-sent events as tokens come, or one JSON object at the end."""


class FaultRequest(Record):
    """Body of ``POST /demo/fault``."""

    slot: str = Field(min_length=1, max_length=128)
    """Name of the slot whose active variant shall turn wrong."""


class Service:
    """The routes over one engine.

    Parameters
    ----------
    engine
        Runs the model; its thread lives as long as the application.
    mailboxes
        Where the engine delivers to.
    metrics
        Counts requests.
    shape
        Of the model: which tokens it knows and how many it holds.
    inject_fault
        Breaks a slot on purpose and raises UsageError if it cannot; None where that is not allowed.
    """

    def __init__(
        self,
        engine: Engine[Any],
        mailboxes: Mailboxes,
        *,
        metrics: ServerMetrics,
        shape: ModelShape,
        inject_fault: Callable[[str], None] | None = None,
    ) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._metrics = metrics
        self._shape = shape
        self._inject_fault = inject_fault

    def app(
        self, *, on_ready: Callable[[], None] = lambda: None, routes: Sequence[Route] = ()
    ) -> Starlette:
        """Return the ASGI application; `on_ready` is called when it takes requests.

        `routes` are served beside its own.
        """

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self._mailboxes.bind()
            self._engine.start()
            on_ready()
            yield
            await asyncio.to_thread(self._engine.stop)

        served = [
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.expose),
            *routes,
        ]
        if self._inject_fault is not None:
            served.append(Route("/demo/fault", self.fault, methods=["POST"]))
        return Starlette(routes=served, lifespan=lifespan)

    async def complete(self, request: Request) -> Response:
        """Answer one completion request."""
        try:
            wanted = CompletionRequest.model_validate_json(await _body(request))
            self._admit(wanted)
        except (ValidationError, UsageError) as error:
            self._metrics.request_ended("refused")
            return _refused(error)
        try:
            id = self._engine.submit(wanted.prompt_tokens, max_tokens=wanted.max_tokens)
        except TemporaryError as error:
            self._metrics.request_ended("refused")
            return refusal(503, str(error), retry_after_s=error.delay_s)
        # No await since submit: the news of its first step are sorted in this loop, after this.
        box = self._mailboxes.open(id)
        answer = CompletionState(id, box, prompt_tokens=len(wanted.prompt_tokens))
        return AnswerResponse(answer, stream=wanted.stream, done=self._done)

    async def health(self, request: Request) -> Response:
        """Say whether requests are taken."""
        alive = self._engine.alive
        return JSONResponse(
            {"status": "ok" if alive else "dead"}, status_code=200 if alive else 503
        )

    async def expose(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def fault(self, request: Request) -> Response:
        """Break a slot's active variant, for the demo of a rollback."""
        if self._inject_fault is None:
            return refusal(404, "faults are not allowed here; start with --allow-fault")
        try:
            wanted = FaultRequest.model_validate_json(await _body(request))
            self._inject_fault(wanted.slot)
        except (ValidationError, UsageError) as error:
            return _refused(error)
        return JSONResponse({"slot": wanted.slot, "broken": True})

    def _admit(self, wanted: CompletionRequest) -> None:
        total = len(wanted.prompt_tokens) + wanted.max_tokens
        if total > self._shape.max_tokens:
            raise UsageError(
                f"prompt_tokens and max_tokens are {total} together, "
                f"more than the {self._shape.max_tokens} that the model holds"
            )
        largest = max(wanted.prompt_tokens)
        if largest >= self._shape.vocab:
            raise UsageError(f"token {largest} is unknown; tokens are 0 to {self._shape.vocab - 1}")

    def _done(self, id: int, outcome: str) -> None:
        self._mailboxes.close(id)
        self._metrics.request_ended(outcome)
        if outcome == "cancelled":
            self._engine.cancel(id)


class _TooLarge(UsageError):
    """The body is longer than any valid request."""


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise _TooLarge(f"a body may have {MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:
        raise UsageError("the client went away before its request was complete") from error
    return body


def _refused(error: ValidationError | UsageError) -> Response:
    if isinstance(error, UsageError):
        return refusal(413 if isinstance(error, _TooLarge) else 400, str(error))
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return refusal(400, f"{where}: {first['msg']}")
