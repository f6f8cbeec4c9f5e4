"""Tokens to callers: asked of the API server once, and believed for at most a minute.

What is kept is a digest of the token, never the token. A token that ends sooner is believed until
then. Refusals are kept for a few seconds, so that a sidecar with a bad token cannot make the
operator ask for each of its tries; several requests with one token wait for one answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from retuned.ports import Clock
from retuned_operator.agent.identity import Caller, Unknown, caller_of, expiry_s
from retuned_operator.agent.ports import Tokens

MAX_TOKEN_BYTES = 16 << 10
"""Longest token."""
BELIEVED_S = 60.0
"""Longest time that the API server's word is kept, seconds."""
REFUSED_S = 5.0
"""The same, where it was no."""
_MAX_KEPT = 20_000
_ASKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Kept:
    said: Caller | Unknown
    until_s: float


class Authenticator:
    """Asks who a token belongs to; lives in one event loop.

    Parameters
    ----------
    tokens
        The API server.
    clock
        Time; its wall clock is compared with when tokens say that they end.
    audience
        What tokens must be for.
    """

    def __init__(self, tokens: Tokens, *, clock: Clock, audience: str) -> None:
        self._tokens = tokens
        self._clock = clock
        self._audience = audience
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller | Unknown]] = {}
        self._limiter = CapacityLimiter(_ASKED_AT_ONCE)

    async def caller(self, token: str | None) -> Caller | Unknown:
        """Return who speaks.

        Raises
        ------
        RetunedError
            If the API server does not say; nobody is believed meanwhile.
        """
        if token is None or len(token) > MAX_TOKEN_BYTES:
            return Unknown.TOKEN_MISSING if token is None else Unknown.TOKEN_REFUSED
        name = hashlib.sha256(token.encode()).digest()
        kept = self._kept.get(name)
        if kept is not None and self._clock.monotonic_s() < kept.until_s:
            return kept.said
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(name, token))
            self._asking[name] = asking
            asking.add_done_callback(lambda done: self._asked(name, done))
        return await asyncio.shield(asking)  # one client that leaves ends nobody else's question

    async def _ask(self, name: bytes, token: str) -> Caller | Unknown:
        answer = await to_thread.run_sync(
            lambda: self._tokens.review(token, audience=self._audience), limiter=self._limiter
        )
        said = caller_of(answer, audience=self._audience)
        self._keep(name, said, for_s=self._for_s(said, token))
        return said

    def _asked(self, name: bytes, done: asyncio.Task[Caller | Unknown]) -> None:
        self._asking.pop(name, None)
        if not done.cancelled():
            done.exception()  # whoever waits gets it; with nobody left it is no news

    def _for_s(self, said: Caller | Unknown, token: str) -> float:
        if isinstance(said, Unknown):
            return REFUSED_S
        ends = expiry_s(token)
        if ends is None:
            return BELIEVED_S
        return min(BELIEVED_S, max(0.0, ends - self._clock.now().timestamp()))

    def _keep(self, name: bytes, said: Caller | Unknown, *, for_s: float) -> None:
        self._kept[name] = _Kept(said, self._clock.monotonic_s() + for_s)
        self._kept.move_to_end(name)
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
