"""An endpoint is a stranger: what it does wrong is bounded, named, and never followed."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Iterator

import pytest
from tests.expect import raises_naming
from tests.lab.evolve.scripted_endpoint import Reply, Respond, chat, dripping, endpoint, in_order

from retuned.errors import UsageError
from retuned.lab.llm.budget import Usage
from retuned.lab.llm.client import WireFailed
from retuned.lab.llm.http import MAX_BODY_BYTES, Endpoint, HttpWire, check_url
from retuned.ports import ChatMessage, ChatRequest

QUESTION = ChatRequest(messages=(ChatMessage(role="user", content="?"),), max_tokens=77)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def failure(respond: Respond, *, timeout_s: float = 30.0) -> WireFailed:
    with endpoint(respond) as server, pytest.raises(WireFailed) as caught:
        HttpWire(Endpoint(url=server.url, model="m", timeout_s=timeout_s)).ask(QUESTION)
    assert len(server.received) <= 1
    return caught.value


def test_what_is_sent_is_what_the_endpoint_expects_and_nothing_else() -> None:
    with endpoint(in_order(chat("hello", usage=(5, 6)))) as server:
        wire = HttpWire(
            Endpoint(
                url=server.url + "/",
                model="m",
                key="k3y",
                temperature=0.5,
                tokens_field="max_completion_tokens",
            )
        )
        answer = wire.ask(QUESTION)
    assert answer.text == "hello"
    assert answer.usage == Usage(prompt_tokens=5, completion_tokens=6)
    (received,) = server.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer k3y"
    assert received.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "?"}],
        "stream": False,
        "max_completion_tokens": 77,
        "temperature": 0.5,
    }


def test_without_key_and_temperature_neither_is_sent() -> None:
    with endpoint(in_order(chat("x"))) as server:
        HttpWire(Endpoint(url=server.url, model="m")).ask(QUESTION)
    assert "authorization" not in server.received[0].headers
    assert "temperature" not in server.received[0].body


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with endpoint(in_order(chat("direct"))) as server:
        assert HttpWire(Endpoint(url=server.url, model="m")).ask(QUESTION).text == "direct"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_nobody_else_is_asked(status: int) -> None:
    with endpoint(in_order(chat("stolen"))) as other:
        reply = Reply(status=status, headers={"location": other.url}, length=0)
        error = failure(in_order(reply))
        assert (error.code, error.again) == ("redirected", False)
        assert other.received == []


def test_a_body_of_fifty_megabytes_is_not_read_to_its_end() -> None:
    sent = []

    def parts() -> Iterator[bytes]:
        for _ in range(50):
            sent.append(1)
            yield b"x" * 2**20

    error = failure(in_order(Reply(parts=parts(), length=50 * 2**20)))
    assert (error.code, error.billed) == ("answer-too-long", True)
    assert len(sent) < 50


def test_a_stream_that_never_ends_is_cut_by_size() -> None:
    error = failure(in_order(Reply(parts=itertools.repeat(b"y" * 65_536))))
    assert error.code == "answer-too-long"
    assert str(MAX_BODY_BYTES) in error.detail


def test_bytes_that_trickle_are_cut_by_the_clock(stop: threading.Event) -> None:
    error = failure(in_order(Reply(parts=dripping(stop))), timeout_s=2.0)
    assert (error.code, error.again, error.billed) == ("timed-out", True, True)


def test_headers_that_trickle_are_cut_by_the_clock(stop: threading.Event) -> None:
    parts = itertools.chain([b"HTTP/1.1 200 OK\r\nx: "], dripping(stop))
    assert failure(in_order(Reply(parts=parts, raw=True)), timeout_s=2.0).code == "timed-out"


def test_silence_is_cut_by_the_clock(stop: threading.Event) -> None:
    def respond(_: object) -> Reply:
        stop.wait(30.0)
        return chat("late")

    with endpoint(respond) as server:
        wire = HttpWire(Endpoint(url=server.url, model="m", timeout_s=2.0))
        with pytest.raises(WireFailed) as caught:
            wire.ask(QUESTION)
        stop.set()
    assert caught.value.code == "timed-out"


@pytest.mark.parametrize(
    ("reply", "code", "again"),
    [
        (chat("x", **{"content-type": "text/html"}), "unreadable-type", False),
        (chat("x", **{"content-type": "text/event-stream"}), "unreadable-type", False),
        (Reply(parts=[b"{}"], length=2), "unreadable-json", True),
        (Reply(parts=[b"[1]"], length=3), "unreadable-json", True),
        (Reply(parts=[b"\xff\xfe"], length=2), "unreadable-json", True),
        (Reply(parts=[b'{"choices": []}'], length=15), "unreadable-json", True),
        (Reply(parts=[b"[" * 200_000], length=200_000), "unreadable-json", True),
        (chat(None), "unreadable-json", True),
        (chat(["a", "b"]), "unreadable-json", True),
        (Reply(parts=[b'{"choices"'], length=1000), "unreadable-broken", True),
        (Reply(parts=[b"nonsense\r\n\r\n"], raw=True), "unreadable-broken", True),
        (
            chat("x", **{"content-encoding": "gzip"}),
            "unreadable-encoding",
            False,
        ),
    ],
)
def test_an_answer_that_is_none_has_a_reason(reply: Reply, code: str, again: bool) -> None:
    error = failure(in_order(reply))
    assert (error.code, error.again) == (code, again)
    assert error.billed  # it may have been paid for


def test_a_compressed_bomb_is_never_unpacked() -> None:
    bomb = gzip.compress(b"x" * 2**24)
    reply = Reply(parts=[bomb], length=len(bomb), headers={"content-encoding": "gzip"})
    assert failure(in_order(reply)).code == "unreadable-encoding"


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": 1},
        {"prompt_tokens": "9", "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 1e3, "completion_tokens": 1},
        {"prompt_tokens": 10**12, "completion_tokens": 1},
        {"completion_tokens": 1},
        [],
        "none",
        None,
    ],
)
def test_usage_that_makes_no_sense_counts_as_none(usage: object) -> None:
    with endpoint(in_order(chat("x", usage=usage))) as server:
        assert HttpWire(Endpoint(url=server.url, model="m")).ask(QUESTION).usage is None


def test_nobody_listening_is_not_paid_for() -> None:
    with endpoint(in_order(chat("x"))) as server:
        url = server.url
    with pytest.raises(WireFailed) as caught:
        HttpWire(Endpoint(url=url, model="m", timeout_s=5.0)).ask(QUESTION)
    assert (caught.value.code, caught.value.again, caught.value.billed) == (
        "unreachable", True, False,
    )  # fmt: skip


@pytest.mark.parametrize("value", ["soon", "-3", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_wish_to_wait_that_is_none_is_left_aside(value: str) -> None:
    reply = Reply(status=429, headers={"retry-after": value}, length=0)
    assert failure(in_order(reply)).pause_s is None


def test_what_an_error_page_says_is_shortened_and_made_harmless() -> None:
    text = b"\x1b[31mno\x07 " + b"z" * 10_000
    error = failure(in_order(Reply(parts=[text], length=len(text), status=400)))
    assert len(error.detail) < 300
    assert error.detail.isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1",
        "host/v1",
        "https://",
        "https://user:pass@host/v1",
        "https://host/v1?key=1",
        "https://host/v1#x",
        "https://host:port/v1",
        "http://[::1/v1",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with raises_naming(UsageError, "address"):
        check_url(url, key=False)


def test_a_key_is_never_sent_in_the_clear_to_another_machine() -> None:
    for url in ("http://models.internal:8000/v1", "http://10.0.0.8/v1", "http://127.0.0.1.x/v1"):
        with raises_naming(UsageError, "address", "key", "https"):
            HttpWire(Endpoint(url=url, model="m", key="k"))
        HttpWire(Endpoint(url=url, model="m"))
    HttpWire(Endpoint(url="http://[::1]:1/v1", model="m", key="k"))
    with raises_naming(UsageError, "the key of"):
        HttpWire(Endpoint(url="https://host/v1", model="m", key="a\r\nx-evil: 1"))


def test_the_key_is_not_in_what_a_log_would_show() -> None:
    shown = Endpoint(url="https://host/v1", model="m", key="k3y")
    assert "k3y" not in f"{shown!r} {shown}"


def test_lone_surrogates_and_control_characters_survive_as_text() -> None:
    body = json.dumps({"choices": [{"message": {"content": "a\ud800\u0000b"}}]}).encode()
    with endpoint(in_order(Reply(parts=[body], length=len(body)))) as server:
        answer = HttpWire(Endpoint(url=server.url, model="m")).ask(QUESTION)
    assert (answer.text, answer.finish) == ("a\ud800\0b", "unknown")
