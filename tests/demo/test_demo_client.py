"""The client's accounting, against a server that lies, stalls and hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code, raises_naming

from retuned.demo.client import Control
from retuned.demo.load import LoadGenerator, LoadSettings, RequestFailed, events_of
from retuned.demo.throughput import Timeline, Work, tokens_per_s
from retuned.demo.traffic import Phase
from retuned.errors import UsageError

Behaviour = Callable[[dict[str, Any]], Sequence[bytes]]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(body: object) -> bytes:
    return _chunk(b"data: %s\n\n" % json.dumps(body).encode())


def _tokens(count: int) -> list[bytes]:
    return [_event({"token": n}) for n in range(count)]


def _usage(asked: dict[str, Any], *, completion: int | None = None) -> bytes:
    sent, wanted = len(asked["prompt_tokens"]), asked["max_tokens"]
    count = wanted if completion is None else completion
    return _event({"usage": {"prompt_tokens": sent, "completion_tokens": count}})


_DONE = _chunk(b"data: [DONE]\n\n")
_END = b"0\r\n\r\n"


def well(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(asked["max_tokens"]), _usage(asked), _DONE, _END]


def cut_inside_a_chunk(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(1), b"ff\r\ndata: "]


def ends_early(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(1), _END]


def one_token_short(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(asked["max_tokens"] - 1), _usage(asked), _DONE, _END]


def one_token_more(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(asked["max_tokens"] + 1), _usage(asked), _DONE, _END]


def wrong_usage(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(asked["max_tokens"]), _usage(asked, completion=0), _DONE, _END]


def error_inside_a_good_status(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(1), _event({"error": "broken"}), _END]


def goes_on_after_the_end(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(asked["max_tokens"]), _usage(asked), _DONE, *_tokens(1), _END]


def no_json(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, _chunk(b"data: {token: 1}\n\n"), _END]


def a_list_for_an_object(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, _event([1]), _END]


def no_event(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, _chunk(b"<html>\n\n"), _END]


def status_500(asked: dict[str, Any]) -> Sequence[bytes]:
    return [b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}"]


def hangs(asked: dict[str, Any]) -> Sequence[bytes]:
    return [_HEAD, *_tokens(1), b"HANG"]


class FakeServer:
    """Answers each request as the next behaviour says; the last one is repeated."""

    def __init__(self, behaviours: Sequence[Behaviour]) -> None:
        self._behaviours = list(behaviours)
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._now = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        self.requests.append(asked)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        index = min(len(self.requests), len(self._behaviours)) - 1
        pieces = self._behaviours[index](asked)
        for piece in pieces:
            if piece == b"HANG":
                await reader.read()  # until the client gives up
                break
            writer.write(piece)
            await writer.drain()
        self._now -= 1
        return pieces[-1] == _END or b"content-length" in pieces[-1]


async def _against(
    server: FakeServer,
    *,
    until: Callable[[LoadGenerator], bool],
    settings: LoadSettings | None = None,
    during: Callable[[LoadGenerator], Awaitable[None]] | None = None,
) -> LoadGenerator:
    settings = settings or LoadSettings(in_flight=1)
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        load = LoadGenerator(f"http://127.0.0.1:{port}", phase=Phase.CODE, settings=settings)
        running = asyncio.create_task(load.run())
        async with asyncio.timeout(200):
            if during is not None:
                await during(load)
            while not until(load):
                await asyncio.sleep(0.002)
            load.stop()
            await running
    return load


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (cut_inside_a_chunk, "cut-short"),
        (ends_early, "cut-short"),
        (one_token_short, "wrong-token-count"),
        (one_token_more, "wrong-token-count"),
        (wrong_usage, "wrong-usage"),
        (error_inside_a_good_status, "error-event"),
        (goes_on_after_the_end, "after-the-end"),
        (no_json, "bad-event"),
        (a_list_for_an_object, "bad-event"),
        (no_event, "bad-event"),
        (status_500, "status-500"),
    ],
)
def test_every_way_to_fail_is_counted_once_with_its_reason(
    behaviour: Behaviour, reason: str
) -> None:
    server = FakeServer([well, behaviour, well])
    load = asyncio.run(_against(server, until=lambda load: len(load.ended) >= 3))
    assert dict(load.failures) == {reason: 1}
    assert [ended.failure for ended in load.ended[:3]] == [None, reason, None]
    assert load.sent == len(load.ended) == len(server.requests)


def test_an_answer_that_never_ends_is_counted_once_and_left() -> None:
    """No request of it is answered: how long a good one takes on this machine decides nothing."""
    server = FakeServer([hangs])
    settings = LoadSettings(in_flight=1, timeout_s=0.3)
    load = asyncio.run(_against(server, until=lambda load: len(load.ended) >= 3, settings=settings))
    assert dict(load.failures) == {"timeout": len(load.ended)}
    assert load.sent == len(load.ended)


def test_a_server_that_is_not_there_is_a_failure() -> None:
    async def run() -> LoadGenerator:
        settings = LoadSettings(in_flight=1)
        load = LoadGenerator("http://127.0.0.1:9", phase=Phase.CHAT, settings=settings)
        running = asyncio.create_task(load.run())
        async with asyncio.timeout(200):
            while not load.ended:
                await asyncio.sleep(0.002)
        load.stop()
        await running
        return load

    load = asyncio.run(run())
    assert set(load.failures) == {"no-connection"}
    assert load.failed == load.sent


def test_no_more_than_the_cap_is_in_flight_and_the_cap_is_reached() -> None:
    server = FakeServer([hangs])
    settings = LoadSettings(in_flight=5, timeout_s=0.5)

    def tried(load: LoadGenerator) -> bool:
        """On a slow machine the first may have given up before the fifth is there."""
        return len(load.ended) >= 5 and server.most_at_once >= 5

    asyncio.run(_against(server, until=tried, settings=settings))
    assert server.most_at_once == 5


def test_all_work_is_in_the_timeline_even_that_of_failed_requests() -> None:
    server = FakeServer([well, ends_early, well])
    load = asyncio.run(_against(server, until=lambda load: len(load.ended) >= 4))
    events = load.timeline.events()
    assert sum(e.output_tokens for e in events) == sum(e.output_tokens for e in load.ended)
    assert sum(e.prompt_tokens for e in events) == sum(e.prompt_tokens for e in load.ended)


def test_the_phase_changes_what_is_sent_next() -> None:
    server = FakeServer([well])

    async def switch(load: LoadGenerator) -> None:
        while load.sent < 30:
            await asyncio.sleep(0.002)
        load.phase = Phase.CHAT

    load = asyncio.run(_against(server, until=lambda load: len(load.ended) >= 90, during=switch))
    phases = [ended.phase for ended in load.ended]
    assert phases == sorted(phases, key=[Phase.CODE, Phase.CHAT].index)
    asked = {p: [e.output_tokens for e in load.ended if e.phase is p] for p in Phase}
    assert sum(asked[Phase.CHAT]) / len(asked[Phase.CHAT]) > 3 * (
        sum(asked[Phase.CODE]) / len(asked[Phase.CODE])
    )


def test_stopping_waits_for_what_is_in_flight() -> None:
    server = FakeServer([well])
    settings = LoadSettings(in_flight=4)
    load = asyncio.run(_against(server, until=lambda load: load.in_flight > 1, settings=settings))
    assert load.in_flight == 0
    assert load.failed == 0
    assert load.sent == len(server.requests)


async def _cut(parts: Sequence[bytes]) -> list[bytes]:
    async def source() -> Any:
        for part in parts:
            yield part

    return [event async for event in events_of(source())]


@given(st.lists(st.integers(0, 9999), max_size=20), st.lists(st.integers(1, 40), max_size=40))
def test_events_do_not_depend_on_how_the_network_cuts_them(
    tokens: list[int], cuts: list[int]
) -> None:
    stream = b"".join(b"data: %d\n\n" % token for token in tokens)
    parts = []
    for cut in cuts:
        parts.append(stream[:cut])
        stream = stream[cut:]
    parts.append(stream)
    assert asyncio.run(_cut(parts)) == [b"%d" % token for token in tokens]


def test_an_event_without_end_is_refused() -> None:
    with raises_code(RequestFailed, "bad-event"):
        asyncio.run(_cut([b"data: " + b"x" * 70_000]))


def _control() -> Control:
    async def build() -> Control:
        settings = LoadSettings()
        return Control(LoadGenerator("http://127.0.0.1:9", phase=Phase.CHAT, settings=settings))

    return asyncio.run(build())


@pytest.mark.parametrize(
    "line", ["", "go", "phase", "phase lunch", "rate 1", "rate 2 1", "rate a b"]
)
def test_a_line_that_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        _control().answer(line)


def test_a_line_switches_the_phase() -> None:
    control = _control()
    assert control.answer("phase code")["phase"] == "code"
    assert control.answer("mark")["phase"] == "code"
    assert control.answer("mark")["sent"] == 0


works = st.lists(
    st.tuples(st.floats(0, 10), st.integers(0, 50), st.integers(0, 5)), max_size=60
).map(sorted)


@given(works, st.floats(0.5, 9.5))
def test_neighbouring_intervals_share_all_work_between_them(
    work: list[tuple[float, int, int]], middle: float
) -> None:
    events = [Work(*item) for item in work]
    whole = tokens_per_s(events, 0, 11) * 11
    parts = tokens_per_s(events, 0, middle) * middle + tokens_per_s(events, middle, 11) * (
        11 - middle
    )
    assert parts == pytest.approx(whole)
    assert whole == pytest.approx(sum(prompt + output for _, prompt, output in work))


@given(works)
def test_a_timeline_loses_nothing_and_stays_small(work: list[tuple[float, int, int]]) -> None:
    timeline = Timeline()
    for t_s, prompt, output in work:
        timeline.add(t_s, prompt_tokens=prompt, output_tokens=output)
    events = timeline.events()
    assert sum(e.prompt_tokens for e in events) == sum(prompt for _, prompt, _ in work)
    assert sum(e.output_tokens for e in events) == sum(output for _, _, output in work)
    assert all(b.t_s - a.t_s >= 0.005 for a, b in pairwise(events))


def test_an_empty_interval_is_refused() -> None:
    with raises_naming(ValueError, "1.0 to 1.0"):
        tokens_per_s([], 1.0, 1.0)
