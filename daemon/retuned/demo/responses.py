"""How an answer travels: from the engine's thread to the request that waits, and out as events.

The engine hands over the news of a step in one call; here they are sorted to their requests. Tokens
that pile up for one client go out in one write, still one event each.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from retuned.demo.batches import Finish, Progress

log = logging.getLogger(__name__)

_STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
_FAILED = "the model failed on this request"


class Mailboxes:
    """Carries news from the engine's thread to the requests, in the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._boxes: dict[int, asyncio.Queue[Progress]] = {}

    def bind(self) -> None:
        """Deliver into the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def open(self, id: int) -> asyncio.Queue[Progress]:
        """Return the box of a request; open it before its first news can come."""
        return self._boxes.setdefault(id, asyncio.Queue())

    def close(self, id: int) -> None:
        """Drop the box; later news of the request are dropped too."""
        self._boxes.pop(id, None)

    def deliver(self, news: Sequence[Progress]) -> None:
        """Hand over one step's news; called in the engine's thread."""
        if self._loop is None or not news:
            return
        try:
            self._loop.call_soon_threadsafe(self._sort, news)
        except RuntimeError:
            log.debug("%d news after the loop closed", len(news))

    def _sort(self, news: Sequence[Progress]) -> None:
        for item in news:
            box = self._boxes.get(item.id)
            if box is not None:
                box.put_nowait(item)


class CompletionState:
    """What has come of one request.

    Parameters
    ----------
    id
        As the engine knows it.
    box
        Where its news arrive.
    prompt_tokens
        Length of its prompt.
    """

    def __init__(self, id: int, box: asyncio.Queue[Progress], *, prompt_tokens: int) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self._box = box

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish is not None

    async def more(self) -> list[int]:
        """Wait for news and return all tokens that are there; sets `finish` with the last."""
        news = [await self._box.get()]
        while not self._box.empty():
            news.append(self._box.get_nowait())
        fresh = [item.token for item in news if item.token is not None]
        self.tokens.extend(fresh)
        self.finish = news[-1].finish
        return fresh

    @property
    def failed(self) -> bool:
        """Whether it ended without all tokens."""
        return self.finish is Finish.ERROR

    def usage(self) -> dict[str, int]:
        """Tokens, as clients are billed."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
        }


class AnswerResponse(Response):
    """Streams or collects an answer; a client that goes away frees its sequence.

    Parameters
    ----------
    answer
        What is coming.
    stream
        Events as tokens come, or one object at the end.
    done
        Told the id and ``ok``, ``failed`` or ``cancelled``, once.
    """

    def __init__(
        self, answer: CompletionState, *, stream: bool, done: Callable[[int, str], None]
    ) -> None:
        super().__init__()
        self._answer = answer
        self._send = self._stream if stream else self._collect
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer ends or the client goes away."""
        answer = self._answer
        work = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        outcome = "cancelled"
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                outcome = "failed" if answer.failed else "ok"
        finally:
            work.cancel()
            gone.cancel()
            self._done(answer.id, outcome)

    async def _stream(self, send: Send) -> None:
        answer = self._answer
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        ended = False
        while not ended:
            events = b"".join(b'data: {"token": %d}\n\n' % token for token in await answer.more())
            ended = answer.ended
            if ended:
                events += _closing(answer)
            await send({"type": "http.response.body", "body": events, "more_body": not ended})

    async def _collect(self, send: Send) -> None:
        answer = self._answer
        while not answer.ended:
            await answer.more()
        response: Response
        if answer.failed:
            response = refusal(500, _FAILED)
        else:
            response = JSONResponse({"tokens": answer.tokens, "usage": answer.usage()})
        await send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await send({"type": "http.response.body", "body": response.body})


def _closing(answer: CompletionState) -> bytes:
    if answer.failed:
        # No [DONE]: a client that looks for the end must see that it is missing.
        return b"data: %s\n\n" % json.dumps({"error": _FAILED}).encode()
    last = {"finish_reason": answer.finish, "usage": answer.usage()}
    return b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(last).encode()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def refusal(status: int, message: str, *, retry_after_s: float | None = None) -> Response:
    """Return an error as one JSON object with a message for people."""
    headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:.0f}"}
    return JSONResponse({"error": message}, status_code=status, headers=headers)
