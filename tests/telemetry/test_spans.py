"""Spans: what is hostile is dropped, what is long is cut, and a bad collector delays nobody."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.common import http
from tests.expect import raises_naming
from tests.telemetry.receiver import NEVER_S, Collector, collecting

from retuned.errors import UsageError
from retuned.store.memory import MemoryStore
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.spans import (
    MAX_CHARS,
    NoSpans,
    TraceContext,
    Value,
    harmless,
    read_traceparent,
    spoken,
)

# An exporter whose collector fails tries again in the background after its test. Its jitter must
# not move the chance that hypothesis watches in a later test.
vars(http)["random"] = random.Random(0)
GOOD = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def bad_collector() -> Iterator[Collector]:
    with collecting(patient=False) as found:
        yield found


@given(st.one_of(st.text(), st.none(), st.integers(), st.binary()))
def test_what_is_no_traceparent_is_nothing(text: object) -> None:
    found = read_traceparent(text)
    assert found is None or found.text()[:53] == str(text)[:53]


@given(
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
)
def test_a_context_is_read_as_it_was_written(trace_id: int, span_id: int, sampled: bool) -> None:
    context = TraceContext(trace_id=trace_id, span_id=span_id, sampled=sampled)
    assert read_traceparent(context.text()) == context


@pytest.mark.parametrize(
    "text",
    [
        "", GOOD.upper(), GOOD + "\n", " " + GOOD, GOOD.replace("ab", "00"),
        GOOD.replace("cd", "00"), "ff" + GOOD[2:], GOOD + "-more", GOOD[:-3],
        "00-" + "zz" * 16 + GOOD[35:],
    ],
)  # fmt: skip
def test_a_hostile_traceparent_begins_a_trace_of_its_own(text: str, collector: Collector) -> None:
    spans = open_spans("retuned", url=collector.url)
    with spans.span("gate", after=text, links=[text, GOOD, GOOD]):
        spans.carried()
    spans.close()
    (span,) = collector.named("gate")
    assert span.parent_id == ""
    assert span.links == {("ab" * 16, "cd" * 8)}


@given(st.text(max_size=3 * MAX_CHARS))
def test_whatever_a_kernel_is_called_its_name_is_short_and_one_line(name: str) -> None:
    said = harmless(name)
    assert isinstance(said, str)
    assert len(said) <= MAX_CHARS
    assert said.isprintable()


def test_long_and_crooked_names_arrive_cut_and_clean(collector: Collector) -> None:
    spans = open_spans("retuned", url=collector.url)
    about: dict[str, Value] = {"kernel": "k" * 100_000, "reason": "a\nb\x1b[31m"}
    about.update({f"n{number}": number for number in range(100)})
    with spans.span("gate", about=about):
        spans.carried()
        spans.say(state="waiting\r\n")
    spans.close()
    (span,) = collector.named("gate")
    assert len(span.about) <= 32
    assert all(len(text) <= MAX_CHARS for text in span.about.values() if isinstance(text, str))


def test_a_span_that_fails_says_so_and_one_that_wrote_nothing_is_none(collector: Collector) -> None:
    spans = open_spans("retuned", url=collector.url)

    def work(name: str, *, writes: bool) -> None:
        with spans.span(name):
            if writes:
                spans.carried()
            raise ValueError("no")

    for name, writes in (("wrote", True), ("looked", False)):
        with raises_naming(ValueError, "no"):
            work(name, writes=writes)
    spans.close()
    assert [(span.name, span.failed) for span in collector.spans] == [("wrote", True)]


@pytest.mark.parametrize(("status", "delay_s"), [(500, 0.0), (503, 0.0), (200, NEVER_S)])
def test_a_collector_that_fails_or_hangs_delays_no_work_and_no_end(
    bad_collector: Collector, status: int, delay_s: float
) -> None:
    bad_collector.status, bad_collector.delay_s = status, delay_s
    spans = open_spans("retuned", url=bad_collector.url)
    store = MemoryStore(carried=spans.carried)
    began_s = time.process_time()
    for number in range(5_000):  # more than the queue holds
        with spans.span("trace", about={"number": number}):
            store.add("batch", str(number), {}, phase="new")
    assert time.process_time() - began_s < 10.0
    assert len(store.ids("batch")) == 5_000
    spans.close()
    assert bad_collector.answered == 0 or not delay_s, "it is left, not waited for"


def test_a_collector_that_is_not_there_delays_nobody() -> None:
    spans = open_spans("retuned", url="http://127.0.0.1:9/v1/traces")
    with spans.span("gate"):
        assert spans.carried()
    spans.close()


def test_without_an_endpoint_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert isinstance(open_spans("retuned", url=""), NoSpans)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    spans = open_spans("retuned", url="")
    assert not isinstance(spans, NoSpans)
    spans.close()
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert isinstance(open_spans("retuned", url=""), NoSpans)


def test_opentelemetrys_own_variables_are_heard(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.removesuffix("/v1/traces"))
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night-shift")
    spans = open_spans("retuned", url="")
    with spans.span("gate"):
        spans.carried()
    spans.close()
    assert [span.service for span in collector.named("gate")] == ["night-shift"]


@pytest.mark.parametrize("url", ["ftp://host/v1/traces", "http://u:p@host/", "http://", "host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with raises_naming(UsageError, "traces_url"):
        open_spans("retuned", url=url)


def test_threads_do_not_see_each_others_frames() -> None:
    spans, seen = NoSpans(), []

    def other() -> None:
        seen.append(spoken())

    with spans.span("gate", about={"proposal": "a"}):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [{}]
