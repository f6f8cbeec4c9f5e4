"""What is being done now: the frames that logs and traces are made of.

A frame names the stage and its subject. Frames nest per thread. Logs read them, and where traces
are on an adapter makes spans of the frames that had a write. One text crosses processes and
restarts, a W3C ``traceparent``. It comes from rows, headers and annotations, so it is untrusted: an
invalid one is ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Value = str | int | float | bool
"""Type of an attribute of a span."""

NOTHING: Mapping[str, Value] = MappingProxyType({})

MAX_CHARS = 200
"""Longest text in a span or a field of a log; kernels have names of thousands of letters."""
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_FIELDS = ("proposal", "experiment", "order", "kernel", "target")
"""What logs repeat of the frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A span of this process or another."""

    trace_id: int
    """128 bits, never 0."""
    span_id: int
    """64 bits, never 0."""
    sampled: bool
    """Whether the sender recorded the span."""

    def text(self) -> str:
        """Return it as a ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def read_traceparent(text: object) -> TraceContext | None:
    """Read a ``traceparent``; None for any invalid value.

    Examples
    --------
    >>> read_traceparent("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01").sampled
    True
    >>> read_traceparent("00-" + "00" * 16 + "-" + "cd" * 8 + "-01") is None
    True
    """
    found = _PARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id=trace_id, span_id=span_id, sampled=bool(int(found[3], 16) & 1))


def harmless(value: Value) -> Value:
    r"""Cut a text to what a span may hold, without anything that no printer shows.

    Examples
    --------
    >>> harmless("gemm\nERROR all is lost"), harmless(3)
    ('gemm?ERROR all is lost', 3)
    """
    if not isinstance(value, str):
        return value
    cut = value if len(value) <= MAX_CHARS else value[: MAX_CHARS - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in cut)


@dataclass(slots=True, kw_only=True)
class Frame:
    """One piece of work, while it is done."""

    stage: str
    """Stage or step, such as ``gate``."""
    after: TraceContext | None = None
    """What brought what is worked on here; None goes on from the frame around this one."""
    links: tuple[TraceContext, ...] = ()
    """What else led here."""
    about: dict[str, Value] = field(default_factory=dict)
    """What it works on."""
    outer: Frame | None = None
    """The frame around."""
    began_ns: int = 0
    """Wall time of its begin, ns since the epoch."""
    own: TraceContext | None = None
    """Its own span; None before the first write."""
    handle: Any = None
    """What an adapter keeps."""


_CURRENT: ContextVar[Frame | None] = ContextVar("retuned_frame", default=None)


def current() -> Frame | None:
    """Return the innermost frame of this thread."""
    return _CURRENT.get()


@contextmanager
def entered(
    stage: str,
    *,
    after: str = "",
    links: Sequence[str] = (),
    since_s: float = 0.0,
    about: Mapping[str, Value],
) -> Iterator[Frame]:
    """Be in a frame; see `retuned.ports.Spans.span`."""
    known = [read_traceparent(each) for each in links]
    frame = Frame(
        stage=stage,
        after=read_traceparent(after),
        links=tuple(dict.fromkeys(each for each in known if each is not None)),
        about={name: harmless(value) for name, value in about.items()},
        outer=_CURRENT.get(),
        began_ns=time.time_ns() - round(max(0.0, since_s) * 1e9),
    )
    token = _CURRENT.set(frame)
    try:
        yield frame
    finally:
        _CURRENT.reset(token)


def spoken() -> dict[str, str]:
    """Return what a line of a log repeats of the frames: stage, ids of the trace, what it is about.

    Examples
    --------
    >>> with entered("gate", about={"proposal": "sha256:ab", "state": "waiting"}):
    ...     spoken()
    {'stage': 'gate', 'proposal': 'sha256:ab'}
    """
    said: dict[str, str] = {}
    frame = _CURRENT.get()
    while frame is not None:
        said.setdefault("stage", frame.stage)
        if frame.own is not None:
            said.setdefault("trace_id", f"{frame.own.trace_id:032x}")
            said.setdefault("span_id", f"{frame.own.span_id:016x}")
        for name in _FIELDS:
            if name in frame.about:
                said.setdefault(name, str(frame.about[name]))
        frame = frame.outer
    return said


class NoSpans:
    """Traces that are off: frames for the logs, and nothing else."""

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
        """Be in a frame."""
        with entered(stage, after=after, links=links, since_s=since_s, about=about):
            yield

    def carried(self) -> str:
        """Return nothing: without traces no span can continue."""
        return ""

    def say(self, **about: Value) -> None:
        """Add to what the frame is about."""
        frame = _CURRENT.get()
        if frame is not None:
            frame.about.update({name: harmless(value) for name, value in about.items()})

    def close(self) -> None:
        """Do nothing."""
