"""Logs for machines: one object a line, whatever names are in it, with trace and proposal."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.telemetry.receiver import collecting

from retuned.telemetry.logs import JsonLines, RateLimitFilter, SpanFilter, TextLines
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.spans import NoSpans


class Written:
    """A logger of its own, and what it wrote."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(formatter)
        handler.addFilter(SpanFilter())
        self.log = logging.Logger("retuned.test")
        self.log.addHandler(handler)

    def lines(self) -> list[str]:
        return self.stream.getvalue().split("\n")[:-1]

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def written() -> Written:
    return Written(JsonLines())


def test_a_line_carries_the_proposal_and_the_trace_in_which_it_was_written(
    written: Written,
) -> None:
    with collecting() as collector:
        spans = open_spans("retuned", url=collector.url)
        with (
            spans.span("steer"),
            spans.span("gate", about={"proposal": "sha256:ab", "kernel": "g"}),
        ):
            carried = spans.carried()
            written.log.info("gate: %s", "it waits")
        spans.close()
    (body,) = written.bodies()
    assert (body["proposal"], body["kernel"], body["stage"]) == ("sha256:ab", "g", "gate")
    assert carried == f"00-{body['trace_id']}-{body['span_id']}-01"
    assert body["message"] == "gate: it waits"


def test_without_traces_the_proposal_is_still_there(written: Written) -> None:
    with NoSpans().span("gate", about={"proposal": "sha256:ab"}):
        written.log.info("x")
    written.log.info("y")
    first, second = written.bodies()
    assert first["proposal"] == "sha256:ab"
    assert "trace_id" not in first
    assert "proposal" not in second


@given(st.text())
def test_no_name_makes_a_second_line_or_another_field(name: str) -> None:
    written = Written(JsonLines())
    with NoSpans().span("gate", about={"kernel": name}):
        written.log.error("kernel %s is left out", name)
    (body,) = written.bodies()
    assert body["message"] == f"kernel {name} is left out"
    assert set(body) == {"time", "level", "logger", "message", "stage", "kernel"}
    assert all(char.isascii() for line in written.lines() for char in line)


def test_an_exception_stays_on_its_line(written: Written) -> None:
    try:
        raise ValueError('a\nb"}\n{"level": "error"}')
    except ValueError:
        written.log.exception("it failed")
    (body,) = written.bodies()
    assert body["exception"].endswith('{"level": "error"}')


def test_a_name_makes_no_second_line_for_people_either() -> None:
    written = Written(TextLines("%(levelname)s %(message)s"))
    written.log.info("kernel %s", "gemm\nERROR \x1b[31mall is lost")
    assert "\x1b" not in written.stream.getvalue()


class Repeating:
    """A logger whose lines pass `RateLimitFilter`, by a clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.written = Written(TextLines("%(name)s %(message)s"))
        self.log = self.written.log
        (handler,) = self.log.handlers
        handler.addFilter(RateLimitFilter(now_s=lambda: self.now_s))

    def passed(self) -> list[str]:
        return [line.removeprefix("retuned.test ") for line in self.written.lines()]


def test_what_is_said_every_few_seconds_is_logged_once_a_minute_with_how_often() -> None:
    repeating = Repeating()
    for _ in range(25):
        repeating.log.info("nobody listens at 100 %% of %s", "sockets")
        repeating.now_s += 5.0
    assert repeating.passed() == [
        "nobody listens at 100 % of sockets",
        "nobody listens at 100 % of sockets (repeated 11 times)",
        "nobody listens at 100 % of sockets (repeated 11 times)",
    ]


def test_other_sentences_and_errors_are_never_left_out() -> None:
    repeating = Repeating()
    for number in range(3):
        repeating.log.info("window %d closed", number)
        repeating.log.error("the disk is full")
    assert repeating.passed() == [
        line for number in range(3) for line in (f"window {number} closed", "the disk is full")
    ]


def test_only_so_many_sentences_are_remembered() -> None:
    repeating = Repeating()
    repeating.log.info("first")
    for number in range(600):
        repeating.log.info("name %d", number)
    repeating.log.info("first")
    assert repeating.passed().count("first") == 2
