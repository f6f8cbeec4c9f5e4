"""What monitoring says, and what its silence, its mistakes and its chatter are worth: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.operators.examples import a_target
from tests.operators.program.scripted_prometheus import ScriptedPrometheus, said, vector

from retuned.clock import FakeClock
from retuned.control.analysis import NOTHING, Compared
from retuned.stages.gate.limits import Metric
from retuned_operator import prometheus
from retuned_operator.controllers.ports import EventSubject
from retuned_operator.prometheus import MAX_ANSWER_BYTES, PAUSE_S, Prometheus, PrometheusSignals
from retuned_operator.schema import TuningTarget, read

SINCE = datetime(2026, 3, 3, 1, 0, tzinfo=UTC)
ABOUT = EventSubject(namespace="serving", target="chat", pods=("chat-0",))
TARGET = read(TuningTarget, a_target())


class World:
    """Signals over a server of the test."""

    def __init__(self, *, max_queries: int = 120, slo_alerts: str = "") -> None:
        self.server, self.clock = ScriptedPrometheus(), FakeClock()
        self.client = httpx.Client(base_url=self.server.start())
        asked = Prometheus(self.client, clock=self.clock, max_queries=max_queries)
        self.signals = PrometheusSignals(asked, slo_alerts=slo_alerts, clock=self.clock)

    def compare(self, query: str = "q", *, names: tuple[str, ...] = ("a",)) -> dict[str, Compared]:
        metrics = [Metric(name=name, query=query, max="1.1x baseline") for name in names]
        return dict(self.signals.compare(metrics, about=ABOUT, since=SINCE))

    def close(self) -> None:
        self.client.close()
        self.server.stop()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server on a machine that stands still have its time."""
    monkeypatch.setattr(prometheus, "TIMEOUT_S", 100.0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_metric_is_asked_for_now_and_for_the_moment_before_the_swap(world: World) -> None:
    world.server.script = lambda _, at: vector("1.5" if at else "1.6")
    assert world.compare('x{pod=~"$pods"}') == {"a": Compared(before=1.5, now=1.6, samples=500)}
    query = 'x{pod=~"chat-0"}'
    assert world.server.asked == [(query, SINCE.timestamp()), (query, None)]
    world.compare('x{pod=~"$pods"}')
    assert len(world.server.asked) == 3, "what is past does not change"


def test_a_scalar_is_a_value_too(world: World) -> None:
    stats = {"samples": {"totalQueryableSamples": 7}}
    world.server.script = lambda _, at: said(resultType="scalar", result=[1.0, "2.5"], stats=stats)
    assert world.compare()["a"] == Compared(before=2.5, now=2.5, samples=7)


@pytest.mark.parametrize(
    "answer",
    [
        vector(),
        vector("1", "2"),
        vector("one"),
        500,
        b"",
        b"no JSON",
        b"[1]",
        b'{"status":"error","errorType":"bad_data","error":"no such function"}',
        b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":7}}',
        b'{"status":"success","data":[]}',
        b"[" * 100_000,
        b" " * (MAX_ANSWER_BYTES + 1),
    ],
)
def test_what_is_no_single_value_is_not_known(world: World, answer: bytes | int) -> None:
    world.server.script = lambda *_: answer
    assert world.compare() == {"a": NOTHING}
    world.server.script = lambda _, at: vector("1.0") if at else answer
    found = world.compare("another")["a"]
    assert (found.before, found.now) == (1.0, None)


def test_a_server_that_does_not_count_samples_leaves_them_unknown(world: World) -> None:
    for stats in (None, True, -1, "many"):
        data: dict[str, Any] = {"resultType": "vector", "result": [{"value": [1, "1"]}]}
        data["stats"] = {"samples": {"totalQueryableSamples": stats}}
        world.server.script = lambda *_, data=data: said(**data)
        assert world.compare()["a"].samples is None


def test_no_more_is_asked_than_the_budget_and_the_rest_is_not_known() -> None:
    world = World(max_queries=3)
    try:
        world.server.script = lambda *_: vector("1")
        names = ("a", "b", "c")
        found = [world.compare(f"q{name}", names=(name,))[name].now for name in names]
        assert found == [1.0, None, None]
        assert len(world.server.asked) == 3
        world.clock.advance(61.0)
        assert world.compare("qb", names=("b",))["b"].now == 1.0
    finally:
        world.close()


def test_a_server_that_is_away_is_left_alone_for_a_while(world: World) -> None:
    world.server.stop()
    assert world.compare() == {"a": NOTHING}
    calls: list[httpx.Request] = []
    world.client.event_hooks["request"].append(calls.append)
    world.compare()
    assert calls == []
    world.clock.advance(PAUSE_S)
    world.compare()
    assert len(calls) == 1
    world.server.start()  # so that the fixture can end it


def test_an_alert_that_fires_is_known_for_a_while_and_silence_is_not_peace() -> None:
    world = World(slo_alerts="ALERTS{severity='page'}")
    try:
        firing = []
        for script in (vector("1"), vector(), 503):
            world.server.script = lambda *_, script=script: script
            firing.append(world.signals.slo_firing(TARGET))
            world.clock.advance(20.0)
        assert firing == [True, False, None]
        world.signals.slo_firing(TARGET)
        asked = len(world.server.asked)
        world.signals.slo_firing(TARGET)
        assert len(world.server.asked) == asked
    finally:
        world.close()


def test_without_a_server_nothing_is_known_and_no_alert_was_asked_for() -> None:
    signals = PrometheusSignals(None, slo_alerts="x", clock=FakeClock())
    metric = Metric(name="a", query="q", max="1.1x baseline")
    assert signals.compare([metric], about=ABOUT, since=SINCE) == {}
    assert signals.slo_firing(TARGET) is False
