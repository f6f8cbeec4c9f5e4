"""Where channels' words arrive: Slack's presses, Alertmanager's webhooks. Only POST does anything.

The order is always the same: bounded, proven, new, understood, and only then done, by the same way
as everything else that people say.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retuned.channels import incoming_alerts, incoming_slack
from retuned.channels.configuring import Incoming
from retuned.channels.hooks import MAX_AGE_S, refused
from retuned.channels.incoming_alerts import Alert
from retuned.channels.incoming_slack import Pressed
from retuned.channels.posting import Answer, send
from retuned.channels.records import Call
from retuned.errors import Refused, RetunedError, UnreadableInput
from retuned.ports import Clock, Telemetry
from retuned.text import clean

log = logging.getLogger(__name__)

_STATUS = {
    "not-signed": 401,
    "signature-wrong": 401,
    "too-old": 401,
    "replayed": 409,
    "other-workspace": 403,
    "user-unknown": 403,
    "body-too-large": 413,
    "body-invalid": 400,
    "not-understood": 400,
    "not-here": 404,
}


class Words(Protocol):
    """What is done with words that are proven."""

    def decide(self, pressed: Pressed) -> str:
        """Give a person's word, and return what there is to say of it.

        Raises
        ------
        Refused
            If it would be none, or there is nothing to say it of.
        RetunedError
            If it cannot be kept now.
        """
        ...

    def heard(self, alerts: Sequence[Alert]) -> None:
        """Stop, go on, or write down.

        Raises
        ------
        RetunedError
            If it cannot be kept now.
        """
        ...


class Replays(Protocol):
    """Remembers what was used."""

    def use(self, token: str, *, until: datetime, now: datetime) -> bool:
        """Note that something was used; False where it was before."""
        ...


class Arrivals:
    """The requests.

    Parameters
    ----------
    words
        What is done.
    incoming
        What is heard, and from whom.
    replays
        What was used before.
    clock
        Time.
    telemetry
        Counts what came.
    reply
        Sends Slack's answers; a test's own.
    """

    def __init__(
        self,
        words: Words,
        incoming: Incoming,
        *,
        replays: Replays,
        clock: Clock,
        telemetry: Telemetry,
        reply: Callable[[str, Call], Answer] = send,
    ) -> None:
        self._words = words
        self._incoming = incoming
        self._replays = replays
        self._clock = clock
        self._telemetry = telemetry
        self._reply = reply

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/slack", self._guarded("slack", self._slack), methods=["POST"]),
                Route(
                    "/alertmanager", self._guarded("alertmanager", self._alerts), methods=["POST"]
                ),
                Route("/healthz", self._healthy),
            ]
        )

    async def _healthy(self, _: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def _slack(self, request: Request) -> Response:
        secret = self._incoming.signing_secret
        if secret is None:
            raise refused("not-here", "Slack is not heard here")
        body = await _body(request, most=incoming_slack.MAX_BODY_BYTES)
        headers = _headers(request, "x-slack-request-timestamp", "x-slack-signature")
        return await run_in_threadpool(self._pressed, body, headers, secret())

    def _pressed(self, body: bytes, headers: Mapping[str, str], secret: str) -> Response:
        now = self._clock.now()
        token = incoming_slack.prove(body, headers, secret=secret, now_s=now.timestamp())
        if not self._replays.use(token, until=now + timedelta(seconds=2 * MAX_AGE_S), now=now):
            raise refused("replayed", "this request came before")
        pressed = incoming_slack.read(body, team=self._incoming.team, users=self._incoming.users)
        if pressed.word is None:  # a button that only opens a page
            return Response()
        try:
            said = self._words.decide(pressed)
        except Refused as error:
            said = f"Not taken: {error}"
        log.info("slack user %s: %s", pressed.slack_user, clean(said))
        return Response(background=self._told(pressed, said))

    def _told(self, pressed: Pressed, said: str) -> BackgroundTask | None:
        if not pressed.reply_url:
            return None
        body = {"response_type": "ephemeral", "replace_original": False, "text": clean(said)[:3000]}
        return BackgroundTask(self._reply, pressed.reply_url, Call(body=json.dumps(body).encode()))

    async def _alerts(self, request: Request) -> Response:
        token = self._incoming.alert_token
        if token is None:
            raise refused("not-here", "Alertmanager is not heard here")
        incoming_alerts.prove(_headers(request, "authorization"), token=token())
        body = await _body(request, most=incoming_alerts.MAX_BODY_BYTES)
        await run_in_threadpool(lambda: self._words.heard(incoming_alerts.read(body)))
        return Response()

    def _guarded(
        self, channel: str, do: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        def count(outcome: str) -> None:
            self._telemetry.count(
                "retuned_channel_arrivals_total", channel=channel, outcome=outcome
            )

        async def guarded(request: Request) -> Response:
            try:
                response = await do(request)
                count("taken")
                return response
            except (Refused, UnreadableInput) as error:
                status = _STATUS.get(error.code, 400 if isinstance(error, Refused) else 503)
                count("again" if status == 503 else "refused")
                log.warning("%s is refused: %s", request.url.path, clean(str(error)))
                said = {"code": error.code, "message": clean(error.message)}
                return JSONResponse(said, status_code=status)
            except RetunedError as error:
                count("again")
                log.warning("%s waits: %s", request.url.path, clean(str(error)))
                return JSONResponse({"code": error.code}, status_code=503)
            except ClientDisconnect:
                count("refused")
                return Response(status_code=400)

        return guarded


def _headers(request: Request, *names: str) -> dict[str, str]:
    """Return headers that came once; one that came twice is none."""
    found = {name: request.headers.getlist(name) for name in names}
    return {name: values[0] for name, values in found.items() if len(values) == 1}


async def _body(request: Request, *, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise refused("body-too-large", f"the body has more than {most} bytes")
    return bytes(body)
