"""Traces out: OpenTelemetry spans over OTLP, sent by a separate thread.

A pass without a write makes no span. The first write of a pass makes one that starts when the work
started. Spans wait in a bounded queue; if the collector is slow or away, spans are dropped and no
caller waits.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from retuned.errors import UsageError
from retuned.telemetry.spans import (
    NOTHING,
    Frame,
    NoSpans,
    TraceContext,
    Value,
    current,
    entered,
    harmless,
)
from retuned.urls import check_url

if TYPE_CHECKING:  # heavy, and loaded only where traces are on
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

MAX_ATTRIBUTES = 32
"""Attributes of one span."""
MAX_LINKS = 64
"""Links of one span."""
_CLOSE_S = 3.0
_EXPORT_S = 5.0
_TALKATIVE = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_on(url: str) -> bool:
    """Whether a setting or OpenTelemetry's own variables name a collector."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return bool(url) or any(os.environ.get(name) for name in _ENDPOINTS)


def open_spans(program: str, *, url: str, **about: str) -> OtlpSpans | NoSpans:
    """Return the exporter of spans; one that drops them if no collector is configured.

    Parameters
    ----------
    program
        Which program this is, such as ``retuned``; ``OTEL_SERVICE_NAME`` is stronger.
    url
        Address to post to, such as ``http://127.0.0.1:4318/v1/traces``; empty takes that of
        OpenTelemetry's variables, and without them nothing is sent.
    about
        Attributes of all spans, such as the target.

    Raises
    ------
    UsageError
        If the address is invalid.
    """
    if not is_on(url):
        return NoSpans()
    if url:
        check_url(url, what="traces_url", secret=False)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or program}
    resource = Resource.create(
        {
            **named,
            "service.version": _version(),
            **{name: str(harmless(text)) for name, text in about.items()},
        }
    )
    limits = SpanLimits(
        max_span_attributes=MAX_ATTRIBUTES,
        max_links=MAX_LINKS,
        max_events=8,
        max_span_attribute_length=256,
    )
    try:
        provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url or None, timeout=_EXPORT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:  # one of OpenTelemetry's variables holds no number
        raise UsageError(f"traces: {error}; see docs/tracing.md") from error
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_SELDOM)
    return OtlpSpans(provider)


class OtlpSpans:
    """Makes spans of frames.

    Parameters
    ----------
    provider
        Where ended spans go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("retuned", _version())

    @contextmanager
    def span(
        self,
        stage: str,
        *,
        after: str = "",
        links: Sequence[str] = (),
        since_s: float = 0.0,
        about: Mapping[str, Value] = NOTHING,
    ) -> Iterator[None]:
        """Be in a frame; it becomes a span once something is written down in it."""
        with entered(stage, after=after, links=links, since_s=since_s, about=about) as frame:
            try:
                yield
            except BaseException as error:
                self._fail(frame, error)
                raise
            finally:
                self._end(frame)

    def carried(self) -> str:
        """Return what a record that is written now carries; empty outside of any frame."""
        frame = current()
        return self._begin(frame).text() if frame is not None else ""

    def say(self, **about: Value) -> None:
        """Add to what the span is about."""
        frame = current()
        if frame is None:
            return
        said = {name: harmless(value) for name, value in about.items()}
        frame.about.update(said)
        if frame.handle is not None:
            frame.handle.set_attributes({_attribute(name): value for name, value in said.items()})

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _begin(self, frame: Frame) -> TraceContext:
        if frame.own is not None:
            return frame.own
        parent = frame.after
        if parent is None and frame.outer is not None:
            parent = self._begin(frame.outer)
        from opentelemetry.trace import Link

        frame.handle = self._tracer.start_span(
            frame.stage,
            context=_context(parent),
            links=[Link(_remote(each)) for each in frame.links[:MAX_LINKS] if each != parent],
            attributes={_attribute(name): value for name, value in frame.about.items()},
            start_time=frame.began_ns,
        )
        made = frame.handle.get_span_context()
        frame.own = TraceContext(
            trace_id=made.trace_id, span_id=made.span_id, sampled=made.trace_flags.sampled
        )
        return frame.own

    def _fail(self, frame: Frame, error: BaseException) -> None:
        if frame.handle is None:
            return  # nothing was written: the pass is repeated
        from opentelemetry.trace import StatusCode

        said = str(harmless(f"{type(error).__name__}: {error}"))
        frame.handle.set_status(StatusCode.ERROR, said)

    def _end(self, frame: Frame) -> None:
        if frame.handle is not None:
            frame.handle.end(end_time=max(time.time_ns(), frame.began_ns))


class _Seldom(logging.Filter):
    """Lets one line a minute pass."""

    def __init__(self) -> None:
        super().__init__()
        self._again_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line may pass."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + 60.0
        return True


_SELDOM = _Seldom()
"""Limits warnings about a collector that is away to one a minute, for all threads together."""


def _attribute(name: str) -> str:
    return f"retuned.{name}"


def _context(parent: TraceContext | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    empty = Context()
    return (
        empty if parent is None else set_span_in_context(NonRecordingSpan(_remote(parent)), empty)
    )


def _remote(context: TraceContext):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(context.sampled)
    )


def _version() -> str:
    try:
        return importlib.metadata.version("retuned")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
