"""A turn of the loop, from drift to a swap and its way back, as a collector sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standalone.local_world import KERNEL, World
from tests.telemetry.receiver import Collector, Seen, collecting

from retuned.standalone.context import RecordKind
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.spans import read_traceparent

LEARNING = {"observe", "drift", "hypothesis", "experiment", "lab", "verdict"}
DECIDING = {"proposal", "gate", "swap", "deliver", "watch", "rollback"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def played(folder: Path, collector: Collector, *, restart: bool = False) -> World:
    """Chat, then code; a person agrees; the winner is swapped in, and found wrong by a check."""
    spans = open_spans("retuned", url=collector.url, target="demo")
    world = World(folder, spans=spans)
    for _ in range(5):
        world.window(8)
        world.loop.turn()
    for _ in range(4):
        world.window(256)
        world.loop.turn()
    if restart:  # a new process: what is on disk is all that it knows
        spans.close()
        world.spans = spans = open_spans("retuned", url=collector.url, target="demo")
        world.restart()
    for _ in range(6):
        world.approve_what_waits()
        world.clock.advance(2.0)
        world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["Analyzing"]
    world.server.counts[KERNEL] = {
        "swapped_launches": 50,
        "shadow_checks": 9,
        "shadow_mismatches": 1,
    }
    world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    for _ in range(3):  # nothing happens any more
        world.clock.advance(2.0)
        world.loop.steer()
    spans.close()
    world.store.close()
    return world


def assert_connected(spans: list[Seen]) -> None:
    """From every span parents and links lead to every other."""
    group = {(span.trace_id, span.span_id): i for i, span in enumerate(spans)}
    for span in spans:
        ends = {(span.trace_id, span.parent_id), *span.links} & group.keys()
        mine = group[span.trace_id, span.span_id]
        for end in ends:
            other = group[end]
            group = {key: mine if at == other else at for key, at in group.items()}
    assert len(set(group.values())) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_one_whole_turn_is_one_trace_even_where_the_daemon_was_restarted_in_the_middle(
    tmp_path: Path, collector: Collector, restart: bool
) -> None:
    played(tmp_path, collector, restart=restart)
    drifted = [
        span for span in collector.named("drift") if span.about["retuned.action"] == "retune"
    ]
    assert len(drifted) == 1
    turn = [span for span in collector.spans if span.trace_id == drifted[0].trace_id]
    assert {span.name for span in turn} >= LEARNING | DECIDING
    known = {span.span_id for span in turn}
    roots = [span for span in turn if not span.parent_id]
    assert [span.name for span in roots] == ["observe"]
    assert all(span.parent_id in known for span in turn if span.parent_id), "none hangs in the air"
    assert_connected(turn)
    assert {span.service for span in turn} == {"retuned"}


def test_a_rollback_links_to_the_swap_that_it_takes_back(
    tmp_path: Path, collector: Collector
) -> None:
    played(tmp_path, collector)
    rollback, confirmed = collector.named("rollback")
    swapped = [s for s in collector.named("deliver") if s.about["retuned.kind"] == "swap"]
    assert len(swapped) == 1
    assert (swapped[0].trace_id, swapped[0].span_id) in rollback.links
    assert confirmed.about["retuned.reason"] == "shadow-mismatch", "of the control plane"
    assert rollback.about["retuned.reason"]
    assert rollback.about["retuned.proposal"] == swapped[0].about["retuned.proposal"]


def test_looks_at_which_nothing_happens_leave_no_span(tmp_path: Path, collector: Collector) -> None:
    world = played(tmp_path, collector)
    gates = collector.named("gate")
    assert 1 <= len(gates) <= 3, "one as it began to wait; its approval is the span of the swap"
    watched = [str(span.about.get("retuned.phase", "")) for span in collector.named("watch")]
    assert sorted(watched) == ["", "analyzing", "rolled-back"], "the node's, and two phases"
    assert len(collector.spans) < 60
    assert world.unexpected() == 0


def test_candidates_begin_when_they_began_and_end_when_they_were_judged(
    tmp_path: Path, collector: Collector
) -> None:
    played(tmp_path, collector)
    for span in collector.named("verdict"):
        assert span.end_ns - span.start_ns >= 1_000_000_000, "each took the fake lab a second"
        assert span.about["retuned.status"] in ("promote", "reject", "ambiguous")


def test_rows_say_in_which_span_they_were_written(tmp_path: Path, collector: Collector) -> None:
    spans = open_spans("retuned", url=collector.url)
    world = World(tmp_path, spans=spans)
    with spans.span("outer"):
        world.store.add("thing", "a", {}, phase="new")
    first = world.store.get("thing", "a")
    assert first is not None
    assert read_traceparent(first.traceparent) is not None
    world.store.advance("thing", "a", expect="new", to="old")  # outside of any span
    second = world.store.get("thing", "a")
    assert second is not None
    assert second.traceparent == first.traceparent
    spans.close()
