"""A collector of traces in this process: real bytes over a socket, read as the protocol says."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from retuned.telemetry import otlp

NEVER_S = 3600.0
"""A delay that outlasts every test."""
_USUAL_S = {"_CLOSE_S": otlp._CLOSE_S, "_EXPORT_S": otlp._EXPORT_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One span, as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: frozenset[tuple[str, str]]
    about: dict[str, object]
    start_ns: int
    end_ns: int
    failed: bool
    service: str


@dataclass
class Collector:
    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    posts: int = 0
    answered: int = 0
    status: int = 200
    delay_s: float = 0.0

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def wait_for(self, name: str, *, count: int = 1, within_s: float = 200.0) -> list[Seen]:
        until_s = time.monotonic() + within_s
        while len(self.named(name)) < count:
            assert time.monotonic() < until_s, (name, [span.name for span in self.spans])
            time.sleep(0.02)
        return self.named(name)


def _seen(span: WireSpan, service: str) -> Seen:
    return Seen(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=frozenset((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        about={
            each.key: getattr(each.value, str(each.value.WhichOneof("value")))
            for each in span.attributes
        },
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        service=service,
    )


@contextmanager
def collecting(*, patient: bool = True) -> Iterator[Collector]:
    """Receive what is sent to ``url``; ``status`` and ``delay_s`` make it a bad one.

    Who sends waits for as long as a busy machine takes, unless how long it does is what is tested.
    """
    collector = Collector()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            collector.posts += 1
            if over.wait(collector.delay_s):
                return  # nobody waits any more
            collector.answered += 1
            if collector.status == 200:
                request = ExportTraceServiceRequest.FromString(data)
                for resource in request.resource_spans:
                    of = {
                        each.key: each.value.string_value for each in resource.resource.attributes
                    }
                    for scope in resource.scope_spans:
                        collector.spans += [
                            _seen(span, of.get("service.name", "")) for span in scope.spans
                        ]
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        with pytest.MonkeyPatch.context() as patched:
            for name, usual_s in _USUAL_S.items():
                patched.setattr(otlp, name, 200.0 if patient else usual_s)
            yield collector
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
