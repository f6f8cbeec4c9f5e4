"""The agent API as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retuned.api.agent import (
    AUDIENCE,
    MAX_WAIT_S,
    VERSION,
    Ack,
    AlarmOrder,
    BootOrder,
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    Orders,
    OverheadOrder,
    ProfileReport,
    ProofOrder,
    ProofPost,
    TunablePost,
    WatchPost,
    Welcome,
    as_orders,
)
from retuned.api.agent import AgentMessage as SaidRecord
from retuned.ports import Clock
from retuned.stages.swap import SwapOrder
from retuned.telemetry.spans import read_traceparent
from retuned_operator.agent_api.artifacts import bundle_of, pieces
from retuned_operator.agent_api.authentication import (
    Authenticator,
    Unknown,
    admitted,
    bearer,
    speaks_for_itself,
)
from retuned_operator.agent_api.ports import Inbox, PodDirectory, PodRecord, Receipt, Said, Tokens
from retuned_operator.agent_api.requests import (
    MAX_BYTES,
    NO_STORE,
    Answered,
    RateLimit,
    answering,
    json_answer,
    number_of,
    parse,
    read_body,
    unknown,
)
from retuned_operator.agent_api.waiters import Hub

T = TypeVar("T", bound=SaidRecord)
R = TypeVar("R")
Traces = Callable[[PodRecord, Sequence[SwapOrder]], Mapping[str, str]]
"""Parent spans for the orders of a pod, by the id of the order; from memory."""
Heard = Callable[[PodRecord], bool]
"""Whether a pod has sent its hello to this process; from memory."""
_ASKED_FOR = ("traces", "proofs", "alarms", "overhead", "boot")
"""Parts of an answer that a sidecar gets if it asks for them."""
_LOOK_AGAIN_S = 5.0
"""Who waits looks this often without being woken, and whether its pod is still there, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How much one pod, and all together, may ask."""

    audience: str = AUDIENCE
    """What tokens must be for."""
    per_s: float = 5.0
    """Requests a second of one pod."""
    burst: int = 60
    """Requests that one pod may make without a pause."""
    bodies: int = 16
    """Bodies that are read and kept at a time; 4 MiB each at most."""
    waiting: int = 5_000
    """Sidecars that may wait for orders at a time."""
    artifacts: int = 4
    """Artifacts that are handed out at a time; 16 MiB each at most."""


class _Agent:
    """The handlers; all of them in one event loop."""

    def __init__(
        self,
        fleet: PodDirectory,
        inbox: Inbox,
        *,
        tokens: Tokens,
        hub: Hub,
        clock: Clock,
        settings: AgentSettings,
        traces: Traces,
        heard: Heard,
    ) -> None:
        self._traces = traces
        self._heard = heard
        self._fleet = fleet
        self._inbox = inbox
        self._hub = hub
        self._clock = clock
        self._settings = settings
        self._authenticator = Authenticator(tokens, clock=clock, audience=settings.audience)
        self._rate = RateLimit(clock, per_s=settings.per_s, burst=settings.burst)
        self._bodies = asyncio.Semaphore(settings.bodies)
        self._handing = asyncio.Semaphore(settings.artifacts)
        self._threads = CapacityLimiter(8)
        self._polls: dict[str, asyncio.Event] = {}

    async def hello(self, request: Request) -> Response:
        """Take who is here and say who answers."""
        pod = await self._taken(request, Hello)
        answer = Welcome(
            version=VERSION, at=self._clock.now(), target=pod.target, key=self._fleet.key()
        )
        return json_answer(answer.model_dump_json())

    async def profiles(self, request: Request) -> Response:
        """Take a window."""
        return await self._kept(request, ProfileReport)

    async def drift(self, request: Request) -> Response:
        """Take a drift report."""
        return await self._kept(request, DriftPost)

    async def definitions(self, request: Request) -> Response:
        """Take a live kernel."""
        return await self._kept(request, DefinitionPost)

    async def tunables(self, request: Request) -> Response:
        """Take a tunable."""
        return await self._kept(request, TunablePost)

    async def proofs(self, request: Request) -> Response:
        """Take live proofs."""
        return await self._kept(request, ProofPost)

    async def watch(self, request: Request) -> Response:
        """Accept the status of slots."""
        return await self._kept(request, WatchPost)

    async def done(self, request: Request) -> Response:
        """Take what became of an order."""
        return await self._kept(request, OrderDone, order=str(request.path_params["order"]))

    async def orders(self, request: Request) -> Response:
        """Answer with all orders of a pod, immediately or when they change."""
        pod = await self._pod(request)
        after = int(number_of(request, "after", most=2.0**53))
        wait_s = number_of(request, "wait", most=MAX_WAIT_S)
        if len(self._polls) >= self._settings.waiting:
            raise Answered(503, "too-many-wait", "too many wait", retry_after_s=5.0)
        newer = asyncio.Event()
        older, self._polls[pod.uid] = self._polls.get(pod.uid), newer
        if older is not None:
            older.set()  # its sidecar was restarted: one question of a pod is held
        try:
            answer = await self._changed(request, pod, after=after, wait_s=wait_s, end=newer)
        finally:
            if self._polls.get(pod.uid) is newer:
                del self._polls[pod.uid]
        # who does not ask for them is of a release that does not know of them; so with proofs
        if request.query_params.get("traces") == "1":
            answer = answer.model_copy(update={"traces": dict(self._traces(pod, answer.orders))})
        unset = {each for each in _ASKED_FOR if not getattr(answer, each)}
        return json_answer(answer.model_dump_json(exclude=unset))

    async def artifact(self, request: Request) -> Response:
        """Hand out an artifact that an order of this pod names."""
        pod = await self._pod(request)
        digest = str(request.path_params["digest"])
        named = {each for order in self._of(pod) for each in (order.artifact, order.previous)}
        if digest not in named:
            raise Answered(404, "artifact-unknown", "no order of this pod names it")
        async with self._handing:
            files = await self._in_thread(lambda: self._fleet.artifact(digest))
            if files is None:
                raise Answered(404, "artifact-unknown", "it is not in the store")
            bundle = await self._in_thread(lambda: bundle_of(digest, files))
        return StreamingResponse(
            pieces(bundle, files), media_type="application/octet-stream", headers=NO_STORE
        )

    async def alive(self, _: Request) -> Response:
        """Answer that the server works, without authentication."""
        return Response(b"ok\n", media_type="text/plain")

    # --- what they share --------------------------------------------------------------------------

    async def _pod(self, request: Request) -> PodRecord:
        """Return the authenticated pod, within its rate limit."""
        said = await self._authenticator.caller(bearer(request.headers.get("authorization")))
        if isinstance(said, Unknown):
            raise unknown(said)
        wait_s = self._rate.wait_s(said.uid)
        if wait_s > 0.0:
            raise Answered(429, "too-often", "asked too often", retry_after_s=wait_s)
        found = admitted(said, self._fleet.pod(said.namespace, said.name))
        if isinstance(found, Unknown):
            raise unknown(found)
        return found

    async def _taken(self, request: Request, kind: type[T], *, order: str = "") -> PodRecord:
        pod = await self._pod(request)
        async with self._bodies:
            body = await read_body(request, limit=MAX_BYTES[kind])
            span = read_traceparent(request.headers.get("traceparent"))
            receipt = Receipt(
                pod=pod, at=self._clock.now(), traceparent=span.text() if span is not None else ""
            )
            await self._in_thread(lambda: self._take(receipt, kind, body, order))
        return pod

    def _take(self, receipt: Receipt, kind: type[T], body: bytes, order: str) -> None:
        said, pod = parse(kind, body), receipt.pod
        problem = speaks_for_itself(pod, said)
        if problem is not None:
            raise unknown(problem)
        if isinstance(said, OrderDone) and said.order != order:
            raise Answered(422, "body-invalid", "order: is not the one of the path")
        if not isinstance(said, Said):
            raise AssertionError(f"no route takes {kind.__name__}")
        self._inbox.take(receipt, said)

    async def _kept(self, request: Request, kind: type[T], *, order: str = "") -> Response:
        pod = await self._taken(request, kind, order=order)
        answer = Ack(unheard=not self._heard(pod))
        return json_answer(answer.model_dump_json(exclude_defaults=True))

    async def _changed(
        self, request: Request, pod: PodRecord, *, after: int, wait_s: float, end: asyncio.Event
    ) -> Orders:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            with self._hub.listening(pod.target) as future:
                answer = as_orders(
                    self._of(pod),
                    self._proofs(request, pod),
                    self._boot(request, pod),
                    alarms=self._alarms(request, pod),
                    overhead=self._overhead(request, pod),
                )
                left_s = until - loop.time()
                over = left_s <= 0.0 or end.is_set() or self._hub.closing
                if answer.revision != after or over:
                    return answer
                await _first(future, end, within_s=min(left_s, _LOOK_AGAIN_S))
            if await request.is_disconnected():
                raise Answered(400, "gone", "the client has disconnected")
            again = self._fleet.pod(pod.namespace, pod.name)
            if again != pod:
                raise unknown(Unknown.POD_REPLACED if again else Unknown.POD_UNKNOWN)

    def _of(self, pod: PodRecord) -> tuple[SwapOrder, ...]:
        return tuple(self._fleet.orders(pod))

    def _proofs(self, request: Request, pod: PodRecord) -> Sequence[ProofOrder]:
        asks = request.query_params.get("proofs") == "1"
        return self._fleet.proofs(pod) if asks else ()

    def _alarms(self, request: Request, pod: PodRecord) -> Sequence[AlarmOrder]:
        asks = request.query_params.get("alarms") == "1"
        return self._fleet.alarms(pod) if asks else ()

    def _overhead(self, request: Request, pod: PodRecord) -> OverheadOrder | None:
        asks = request.query_params.get("overhead") == "1"
        return self._fleet.overhead(pod) if asks else None

    def _boot(self, request: Request, pod: PodRecord) -> BootOrder | None:
        asks = pod.replica and request.query_params.get("boot") == "1"
        return self._fleet.boot(pod) if asks else None

    async def _in_thread(self, do: Callable[[], R]) -> R:
        return await to_thread.run_sync(do, limiter=self._threads)


def agent_app(
    fleet: PodDirectory,
    inbox: Inbox,
    *,
    tokens: Tokens,
    hub: Hub,
    clock: Clock,
    settings: AgentSettings | None = None,
    traces: Traces = lambda _pod, _orders: {},
    heard: Heard = lambda _pod: True,
) -> Starlette:
    """Return the application.

    Parameters
    ----------
    fleet
        Pods, orders and artifacts.
    inbox
        Takes what sidecars say.
    tokens
        The API server.
    hub
        Wakes waiting requests.
    clock
        Time.
    settings
        Bounds.
    traces
        Spans that orders of a pod go on from, by order; none by default.
    heard
        Whether a pod has sent its hello to this process; if not, the answer asks for it.
    """
    agent = _Agent(
        fleet,
        inbox,
        tokens=tokens,
        hub=hub,
        clock=clock,
        settings=settings or AgentSettings(),
        traces=traces,
        heard=heard,
    )
    routes = [
        Route("/v1/hello", answering(agent.hello), methods=["POST"]),
        Route("/v1/profiles", answering(agent.profiles), methods=["POST"]),
        Route("/v1/drift", answering(agent.drift), methods=["POST"]),
        Route("/v1/definitions", answering(agent.definitions), methods=["POST"]),
        Route("/v1/tunables", answering(agent.tunables), methods=["POST"]),
        Route("/v1/proofs", answering(agent.proofs), methods=["POST"]),
        Route("/v1/watch", answering(agent.watch), methods=["POST"]),
        Route("/v1/orders", answering(agent.orders), methods=["GET"]),
        Route("/v1/orders/{order}/done", answering(agent.done), methods=["POST"]),
        Route("/v1/artifacts/{digest}", answering(agent.artifact), methods=["GET"]),
        Route("/healthz", agent.alive, methods=["GET"]),
    ]
    return Starlette(routes=routes)


async def _first(woken: asyncio.Future[None], end: asyncio.Event, *, within_s: float) -> None:
    """Wait until one is woken, another question of the pod ends this one, or time is up."""
    ended = asyncio.ensure_future(end.wait())
    both: set[asyncio.Future[Any]] = {woken, ended}
    try:
        await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
