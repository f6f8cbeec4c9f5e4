"""Graphs that are not followed: nothing is claimed of them, and no check ends their capture."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.expect import raises_naming
from tests.runtime.graphs.played import Played
from tests.runtime.graphs.test_graph_following import Server, factor

from retuned.runtime.core.reports import slot_sample
from retuned.runtime.graphs import process
from retuned.runtime.graphs.followers import Graphs
from retuned.runtime.graphs.process import OFF, follow_torch
from retuned.runtime.graphs.report import graphs_state
from retuned.runtime.graphs.service import HostedGraphs
from retuned.runtime.schema import Refused


@pytest.fixture
def server(played: Played, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with ``RETUNED_GRAPHS=off``."""
    made = Server(played)
    made.graphs.close()
    made.graphs = Graphs(lambda _: played.calls, capturing=played.capturing, device=lambda: 0)
    monkeypatch.setenv("RETUNED_GRAPHS", "off")
    made.torch.version = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    follow_torch(made.graphs)
    made.graphs.add_slot(made.slot)
    yield made
    made.close()


def sample(server: Server) -> dict[str, Any]:
    hosted = HostedGraphs(None, graphs=lambda: server.graphs)
    return hosted.counted(server.slot, slot_sample(server.slot))


def test_a_graph_is_neither_kept_nor_changed_and_counted_as_one_that_nobody_follows(
    server: Server,
) -> None:
    assert server.graphs.reason == OFF
    graph, made = server.capture(64)
    assert not graph.keep
    assert server.graphs.index.where(lambda _: True) == []
    server.order(server.variant())
    assert factor(graph, made) == [2.0]
    said = sample(server)
    assert (said["unfollowed_graphs"], said["graphs_reason"]) == (1, OFF)
    assert said["graph_launches"] == said["swapped_launches"] == 0
    state = graphs_state(server.graphs)
    assert (state["following"], state["captured_unfollowed"]) == (False, 1)


def test_what_waits_for_a_device_waits_for_the_capture(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FOUND", [(os.getpid(), server.graphs)])
    graph = server.graph()
    graph.capture_begin()
    try:
        assert process.captures_under_way()
        with raises_naming(Refused, "captured"):
            process.quiet().__enter__()
    finally:
        graph.capture_end()
    assert not process.captures_under_way()
    with process.quiet():
        pass


def test_a_graph_that_was_captured_before_is_counted_when_it_is_replayed(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Server(played)
    made.graphs.close()
    graph, outputs = made.capture(64)
    monkeypatch.setenv("RETUNED_GRAPHS", "off")
    made.torch.version = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    late = Graphs(lambda _: played.calls, capturing=played.capturing, device=lambda: 0)
    follow_torch(late)
    assert late.unfollowed == 0
    for _ in range(3):
        assert factor(graph, outputs) == [2.0]
    assert late.unfollowed == 1
    late.close()
    made.close()


def test_a_capture_that_failed_and_a_graph_that_is_gone_are_not_counted(server: Server) -> None:
    graph, _ = server.capture(64)
    graph.reset()
    assert server.graphs.unfollowed == 0
    graph, _ = server.capture(64)
    assert server.graphs.unfollowed == 1
    del graph, _
    assert server.graphs.unfollowed == 0


def test_where_a_pytorch_cannot_keep_graphs_their_captures_are_noticed_all_the_same(
    played: Played,
) -> None:
    made = Server(played)
    made.graphs.close()
    del made.torch.cuda.CUDAGraph.__mro__[1].raw_cuda_graph
    late = Graphs(lambda _: played.calls, capturing=played.capturing, device=lambda: 0)
    assert not late.install(made.torch)
    assert late.reason == "graphs-not-kept"
    graph, outputs = made.capture(64)
    assert late.unfollowed == 1
    assert factor(graph, outputs) == [2.0]
    late.close()
    made.close()


def test_pytorchs_methods_are_its_own_again_at_the_end(server: Server) -> None:
    server.close()
    assert dict(vars(server.torch.cuda.CUDAGraph)) == server.methods
    follow_torch(server.graphs)  # and noticed again if somebody goes on
    assert server.graphs.torch.watched
    assert not server.graphs.torch.installed


def test_graphs_that_are_followed_are_not_among_them(played: Played) -> None:
    made = Server(played)
    _graph, _ = made.capture(64)
    assert made.graphs.unfollowed == 0
    assert sample(made)["graphs_reason"] == ""
    made.close()
