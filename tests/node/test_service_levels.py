"""Service levels read from a metrics page over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from tests.expect import raises_naming

from retuned.errors import TemporaryError, UsageError
from retuned.node.service_levels import HttpServiceCounts, LevelWatch, served
from retuned.stages.gate import ServiceLevels

BUCKETS = (0.01, 0.1, 1.0)
LABELS = ("engine", "model_name")


class Server:
    """Metrics of two engines, as vLLM has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.first = self._histogram("vllm:time_to_first_token_seconds")
        self.between = self._histogram("vllm:inter_token_latency_seconds")
        self.waiting = Gauge("vllm:num_requests_waiting", "h", LABELS, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        return Histogram(name, "h", LABELS, registry=self.registry, buckets=BUCKETS)

    def serve(self, *, first_s: float, waiting: int, count: int = 30) -> None:
        """Note requests of both engines."""
        for engine in ("0", "1"):
            self.waiting.labels(engine, "m").set(waiting)
            for _ in range(count):
                self.first.labels(engine, "m").observe(first_s)
                self.between.labels(engine, "m").observe(first_s / 10.0)

    def page(self) -> bytes:
        return generate_latest(self.registry)


@dataclass
class Page:
    """What the fake server answers."""

    url: str = ""
    status: int = 200
    body: bytes = b""


@pytest.fixture
def page() -> Iterator[Page]:
    told = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}/metrics"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield told
        server.shutdown()
        thread.join()


def watch(page: Page, clock: list[float], **bounds: int) -> LevelWatch:
    counts = HttpServiceCounts(page.url, now=lambda: clock[0])
    return LevelWatch(counts, ServiceLevels(**bounds))


def test_engines_are_added_up() -> None:
    server = Server()
    server.serve(first_s=0.05, waiting=2)
    found = served(server.page().decode(), at_s=1.0)
    assert found.waiting == 4.0
    assert found.first_token is not None
    assert found.first_token.counts == (0.0, 60.0, 60.0, 60.0)
    assert found.between_tokens is not None
    assert found.between_tokens.counts == (60.0, 60.0, 60.0, 60.0)


def test_slow_requests_are_a_breach_until_ten_seconds_are_over(page: Page) -> None:
    server, clock = Server(), [0.0]
    looked = watch(page, clock, ttft_p99_ms=200)

    def met(at_s: float, first_s: float) -> bool:
        clock[0] = at_s
        server.serve(first_s=first_s, waiting=0)
        page.body = server.page()
        return looked.met()

    assert met(0.0, 0.05)
    assert met(1.0, 0.05)
    assert not met(2.0, 0.9)
    assert not met(8.0, 0.05)
    assert met(15.0, 0.05)


def test_a_restart_is_a_breach_and_then_the_new_counts_hold(page: Page) -> None:
    clock, old, new = [0.0], Server(), Server()
    looked = watch(page, clock, ttft_p99_ms=200)
    old.serve(first_s=0.05, waiting=0)
    new.serve(first_s=0.05, waiting=0, count=1)
    for server, expected in ((old, True), (new, False), (new, True)):
        page.body = server.page()
        clock[0] += 1.0
        assert looked.met() is expected


@pytest.mark.parametrize("body", [b"", b"\xff", b"a{ 1", b"# TYPE x histogram\nx{le= 1\n"])
def test_a_page_without_the_counts_is_not_met(page: Page, body: bytes) -> None:
    page.body = body
    assert not watch(page, [0.0], max_queue=1).met()


def test_a_page_that_does_not_come_is_not_met(page: Page) -> None:
    page.body, page.status = b"gone", 404
    counts = HttpServiceCounts(page.url)
    with raises_naming(TemporaryError, "404"):
        counts.read()
    assert not watch(page, [0.0], max_queue=1).met()


@pytest.mark.parametrize("url", ["", "metrics", "ftp://a/metrics", "http:///metrics"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        HttpServiceCounts(url)
