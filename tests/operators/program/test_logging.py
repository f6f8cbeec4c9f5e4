"""The operator's log: for people, or one object a line with what was being done."""

from __future__ import annotations

import importlib
import json
import logging
from threading import Event
from typing import Any

import pytest
from tests.operators.controllers.test_swaps import at_canary, reached

from retuned.telemetry.logs import JsonLines, SpanFilter
from retuned.telemetry.spans import NoSpans
from retuned_operator.main import main
from retuned_operator.schema import ProposalPhase as P
from retuned_operator.settings import Settings

PROGRAM = importlib.import_module("retuned_operator.main")


class Played:
    """An operator that says one thing."""

    def __init__(self, _settings: Settings) -> None:
        self.log = logging.getLogger("retuned_operator.played")

    def run(self, _stop: Event) -> None:
        with NoSpans().span("gate", about={"proposal": "swp-1", "kernel": "gemm"}):
            self.log.info("it %s", "waits")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Leave this process its signals."""
    monkeypatch.setattr(PROGRAM, "Operator", Played)
    monkeypatch.setattr(PROGRAM, "_until_told", lambda _stop: None)
    return monkeypatch


def ended(alone: pytest.MonkeyPatch) -> int:
    """Run the program as if nobody had set up a log before."""
    alone.setattr(logging.getLogger(), "handlers", [])
    return main([])


def test_for_machines_each_line_is_an_object_with_proposal_and_stage(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.setenv("RETUNED_OPERATOR_LOG_FORMAT", "json")
    assert ended(alone) == 0
    said, last = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    about = {"proposal": "swp-1", "kernel": "gemm", "stage": "gate"}
    assert said["message"] == "it waits"
    assert said.items() >= about.items()
    assert (last["message"], "proposal" in last) == ("ended", False)


def test_people_read_plain_lines(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(alone) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("retuned_operator.played: it waits")


def test_what_the_controllers_say_of_a_proposal_is_found_by_its_name() -> None:
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines().format(record)))

    handler, log = Kept(), logging.getLogger("retuned_operator")
    handler.addFilter(SpanFilter())
    log.addHandler(handler)
    try:
        cluster = at_canary()
        for server in cluster.servers.values():
            server.says = "rollback"
        cluster.turn()
        for server in cluster.servers.values():
            server.says = "silent"
        reached(cluster, P.ROLLBACK_FAILED)
    finally:
        log.removeHandler(handler)
    (page,) = [each for each in lines if "rollback-failed" in each["message"]]
    assert page["proposal"] == "serving/swp-1"
