"""One suite over both ways to a server: HTTP and the fake; and what strangers may send."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.ports import EndToEnd
from retuned.stages.watch import Served, ServerResponse
from retuned.standalone.proofs.end_to_end_http import FakeEndToEnd, HttpEndToEnd, load_requests

PLAIN = {"prompt": "two", "max_tokens": 2}


class Handler(BaseHTTPRequestHandler):
    """Streams what the test wrote under the prompt's name."""

    scripts: ClassVar[dict[str, bytes]] = {}
    seen: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    left: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).seen.append((self.path, body))
        name = str(body.get("prompt", body.get("messages")))
        self.send_response(200 if name in self.scripts else 500)
        self.end_headers()
        if name == "drips":
            self._drip()
        self.wfile.write(self.scripts.get(name, b""))

    def _drip(self) -> None:
        """Send a line that does not end, for a while or until nobody listens."""
        self.close_connection = True
        try:
            for _ in range(30_000):
                self.wfile.write(b"x")
                time.sleep(0.01)
        except OSError:
            type(self).left.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def events(*bodies: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def text(piece: str, **more: object) -> dict[str, object]:
    return {"choices": [{"text": piece, **more}]}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=lambda: made.serve_forever(0.05))
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}/v1"
    made.shutdown()
    thread.join()
    made.server_close()


def over_http(server: str, *requests: dict[str, Any], **more: Any) -> HttpEndToEnd:
    Handler.seen.clear()
    return HttpEndToEnd(server, requests or (PLAIN,), **more)


@pytest.fixture(params=["fake", "http"])
def answering(request: pytest.FixtureRequest) -> EndToEnd:
    if request.param == "fake":
        one = ServerResponse(tokens=("one", " two"), ttft_s=0.1, tpot_s=0.1)
        return FakeEndToEnd(script=[Served(answers=(one, ServerResponse(failed=True)), wall_s=1.0)])
    Handler.scripts = {"two": events(text("one"), text(" two"))}
    url = request.getfixturevalue("server")
    return over_http(url, PLAIN, {"prompt": "unknown"})


@pytest.fixture(params=["fake", "http", "nobody"])
def silent(request: pytest.FixtureRequest) -> EndToEnd:
    if request.param == "fake":
        return FakeEndToEnd()
    if request.param == "nobody":
        return HttpEndToEnd("http://127.0.0.1:9/v1", (PLAIN,))
    Handler.scripts = {}
    return over_http(request.getfixturevalue("server"), PLAIN)


def test_every_request_is_answered_in_order_and_a_failed_one_is_an_answer(
    answering: EndToEnd,
) -> None:
    for _ in range(2):
        served = answering.serve()
        assert [answer.failed for answer in served.answers] == [False, True]
        assert served.answers[0].tokens == ("one", " two")
        assert served.answers[0].ttft_s is not None
        assert served.wall_s > 0.0


def test_a_server_that_answers_nothing_is_a_reason_to_try_again(silent: EndToEnd) -> None:
    with pytest.raises(TemporaryError):
        silent.serve()


def test_tokens_and_probabilities_are_read_as_servers_tell_them(server: str) -> None:
    told = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.5]}
    chat = {"content": [{"token": "a", "logprob": -0.5}]}
    Handler.scripts = {
        "completion": events(text("ab", logprobs=told)),
        "[{'role': 'user', 'content': 'x'}]": events(
            {"choices": [{"delta": {"content": "a"}, "logprobs": chat}]}
        ),
        "tokens": events({"token": 7}, {"token": 9}, {"usage": {"completion_tokens": 2}}),
        "cut": events(text("Hel"), text("lo wor"), text("ld")),
    }
    requests = [{"prompt": n} for n in ("completion", "tokens", "cut")]
    messages = {"messages": [{"role": "user", "content": "x"}]}
    served = over_http(server, *requests, messages, concurrency=1).serve()
    assert [answer.tokens for answer in served.answers] == [
        ("a", "b"),
        ("7", "9"),
        ("Hello", " world"),
        ("a",),
    ], "text is compared by words, however it was cut"
    assert [answer.logprobs for answer in served.answers] == [(-0.5, -1.5), (), (), (-0.5,)]
    paths = [path for path, _ in Handler.seen]
    assert paths == ["/v1/completions"] * 3 + ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "script",
    [
        events(text("never ends"), done=False),
        events(),
        b"data: {\n\ndata: [DONE]\n\n",
        events({"choices": []}, {"choices": [7]}, 3, {"token": True}, {"token": "7"}),
        events(text("")),
        b"x" * (9 << 20),
        events(*[{"token": 1}] * 17_000),
    ],
)
def test_an_answer_without_sense_or_end_failed(server: str, script: bytes) -> None:
    Handler.scripts = {"odd": script, "two": events(text("fine"))}
    served = over_http(server, {"prompt": "odd"}, PLAIN).serve()
    assert [answer.failed for answer in served.answers] == [True, False]


def test_a_line_that_drips_and_never_ends_is_left_when_its_time_is_over(server: str) -> None:
    Handler.scripts = {"two": events(text("fine")), "drips": b""}
    Handler.left.clear()
    drips = over_http(server, {"prompt": "drips"}, timeout_s=0.3)
    with pytest.raises(TemporaryError):
        drips.serve()
    assert Handler.left.wait(150.0), "it was read to its end"


def test_numbers_that_are_none_do_no_harm(server: str) -> None:
    odd = {"tokens": ["a", "b", 3], "token_logprobs": [None, -math_inf(), -1.0]}
    Handler.scripts = {"two": events(text("ab", logprobs=odd))}
    (answer,) = over_http(server).serve().answers
    assert answer.tokens == ("b",)
    assert answer.logprobs == (-1e4,)


def math_inf() -> float:
    return float("inf")


def test_requests_are_sent_as_written_and_streamed_and_greedy(tmp_path: Path, server: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "two", "max_tokens": 3}\n\n{"prompt_tokens": [1, 2]}\n')
    requests = load_requests(file)
    assert requests == (
        {"prompt": "two", "max_tokens": 3, "temperature": 0, "stream": True},
        {"prompt_tokens": [1, 2], "stream": True},
    )
    Handler.scripts = {"two": events(text("fine"))}
    over_http(server, dict(requests[0])).serve()
    assert Handler.seen == [("/v1/completions", requests[0])]


@pytest.mark.parametrize("content", ["", "[]\n", "{\n", "7\n", '{"a": 1}\n' * 1025])
def test_files_without_requests_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(content)
    with pytest.raises(UnreadableInput):
        load_requests(file)
    with pytest.raises(UnreadableInput):
        load_requests(tmp_path / "absent")


@pytest.mark.parametrize("url", ["", "ftp://x/v1", "localhost:8000", "http:///v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        HttpEndToEnd(url, (PLAIN,))
