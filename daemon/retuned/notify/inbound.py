"""Inbound requests: Slack buttons and Alertmanager webhooks. Only POST changes anything.

Each request is bounded, its signature and time are checked, its token is used once, and it is
parsed before it acts. An alert decides nothing: it may stop tuning, and it is recorded.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retuned.errors import Refused, RetunedError, UnreadableInput
from retuned.notify import slack
from retuned.notify.http import Answer, send
from retuned.notify.messages import Call
from retuned.notify.settings import Incoming
from retuned.notify.slack import Pressed
from retuned.notify.webhook import MAX_AGE_S, refused
from retuned.ports import Clock, Telemetry
from retuned.stages.gate import FreezeScope, TuningFreeze
from retuned.text import clean

MAX_BODY_BYTES = 1 << 20
PAUSE = "retuned_pause"
"""Label of alerts that stop tuning; its value is ``true``."""
_PREFIX = "alertmanager-"
_Text = Annotated[str, Field(max_length=4000)]
_Labels = Annotated[dict[Annotated[str, Field(max_length=200)], _Text], Field(max_length=100)]


class Alert(BaseModel):
    """One alert; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: Literal["firing", "resolved"]
    labels: _Labels
    annotations: _Labels = {}
    startsAt: AwareDatetime
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]

    @property
    def stop(self) -> str:
        """Prefix of the names of this alert's freezes."""
        return f"{_PREFIX}{self.fingerprint}-{int(self.startsAt.timestamp())}-"

    @property
    def once(self) -> str:
        """Key under which it is recorded once."""
        text = f"{self.fingerprint} {self.startsAt.isoformat()} {self.status}"
        return "alert:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def pauses(self) -> bool:
        return self.labels.get(PAUSE) == "true"

    @property
    def said(self) -> str:
        text = self.annotations.get("summary") or self.labels.get("alertname") or "an alert"
        return clean(text)[:500]


class _Payload(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], Field(max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """Action for an alert."""

    freeze: TuningFreeze | None = None
    thaw: tuple[str, ...] = ()
    proposal: str = ""
    """Proposal whose history records it; may be empty."""


def prove(headers: Mapping[str, str], *, token: str) -> None:
    """Check the bearer token in constant time.

    Raises
    ------
    Refused
        ``not-signed`` or ``signature-wrong``.
    """
    scheme, _, said = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not said:
        raise refused("not-signed", "the request has no bearer token")
    if not token or not hmac.compare_digest(said.strip().encode(), token.encode()):
        raise refused("signature-wrong", "the bearer token is another")


def read(body: bytes) -> tuple[Alert, ...]:
    """Read a webhook's body.

    Raises
    ------
    UnreadableInput
        If it is not of version 4.
    """
    try:
        return _Payload.model_validate(json.loads(body)).alerts
    except (ValueError, RecursionError) as error:
        count = error.error_count() if isinstance(error, ValidationError) else 1
        raise UnreadableInput(
            "body-invalid",
            where="alertmanager",
            message=f"is not a webhook body of version 4 ({count} problems)",
        ) from error


def meaning(
    alert: Alert, *, standing: tuple[TuningFreeze, ...], pause: timedelta, now: datetime
) -> Meant:
    """Return the action for an alert.

    `standing` are the active freezes; `pause` limits a freeze whose alert is not repeated.
    """
    proposal = alert.labels.get("proposal", "")[:256]
    if not alert.pauses:
        return Meant(proposal=proposal)
    mine = [freeze for freeze in standing if freeze.id.startswith(alert.stop)]
    if alert.status == "resolved":
        return Meant(thaw=tuple(freeze.id for freeze in mine), proposal=proposal)
    lasts = max((freeze.until for freeze in mine if freeze.until is not None), default=now)
    if lasts - now > pause / 2:
        return Meant(proposal=proposal)
    freeze = TuningFreeze(
        id=f"{alert.stop}{int(now.timestamp())}",
        scope=_scope(alert),
        until=now + pause,
        reason=alert.said,
        user="alertmanager",
        at=now,
    )
    return Meant(freeze=freeze, proposal=proposal)


def _scope(alert: Alert) -> FreezeScope:
    """Return the scope from its labels; an invalid name freezes everything."""
    try:
        return FreezeScope.model_validate(
            {
                plural: [alert.labels[name]] if alert.labels.get(name) else []
                for name, plural in (("target", "targets"), ("kernel", "kernels"))
            }
        )
    except ValidationError:
        return FreezeScope()


def detail(alert: Alert) -> dict[str, Any]:
    name = clean(alert.labels.get("alertname", ""))[:200]
    return {"alert": name, "summary": alert.said, "fingerprint": alert.fingerprint}


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
    """Actions of verified requests; both raise `RetunedError` if they cannot be stored now."""

    def decide(self, pressed: Pressed) -> str:
        """Record a person's decision and return the answer; raises `Refused` if it cannot count."""
        ...

    def heard(self, alerts: Sequence[Alert]) -> None: ...


class Replays(Protocol):
    """Tokens that were used since a time."""

    @property
    def since(self) -> datetime: ...

    def use(self, token: str, *, until: datetime, now: datetime) -> bool: ...


class Arrivals:
    """The HTTP handlers; `reply` sends answers to Slack."""

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
        body = await _body(request, most=slack.MAX_BODY_BYTES)
        headers = _headers(request, "x-slack-request-timestamp", "x-slack-signature")
        return await run_in_threadpool(self._pressed, body, headers, secret())

    def _pressed(self, body: bytes, headers: Mapping[str, str], secret: str) -> Response:
        now = self._clock.now()
        token = slack.prove(body, headers, secret=secret, now_s=now.timestamp())
        if int(headers["x-slack-request-timestamp"]) < int(self._replays.since.timestamp()):
            # tokens that were used before a restart are lost, so no request of that time counts
            raise refused("too-old", "the request is older than this process; press again")
        if not self._replays.use(token, until=now + timedelta(seconds=2 * MAX_AGE_S), now=now):
            raise refused("replayed", "this request came before")
        pressed = slack.read(body, team=self._incoming.team, users=self._incoming.users)
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
        prove(_headers(request, "authorization"), token=token())
        body = await _body(request, most=MAX_BODY_BYTES)
        await run_in_threadpool(lambda: self._words.heard(read(body)))
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
    """Return headers that occur exactly once."""
    found = {name: request.headers.getlist(name) for name in names}
    return {name: values[0] for name, values in found.items() if len(values) == 1}


async def _body(request: Request, *, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise refused("body-too-large", f"the body has more than {most} bytes")
    return bytes(body)


class UsedTokens:
    """Tokens that were used while this process runs."""

    def __init__(self, *, since: datetime) -> None:
        self.since = since
        self._until: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def use(self, token: str, *, until: datetime, now: datetime) -> bool:
        """Record a token; False if it was used before."""
        with self._lock:
            self._until = {each: end for each, end in self._until.items() if end > now}
            if token in self._until:
                return False
            self._until[token] = until
            return True
