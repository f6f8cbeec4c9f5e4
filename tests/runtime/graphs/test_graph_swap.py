"""Nodes of captured graphs are changed, all or none, and taken back; on a played device."""

from __future__ import annotations

import ctypes
import gc
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code, raises_naming
from tests.runtime.graphs.played import KERNELS, Played, floats

from retuned.runtime.graphs.index import IndexedGraph, index_graph
from retuned.runtime.graphs.launch_notes import CaptureNotes
from retuned.runtime.graphs.node_swap import Change, apply, prepare
from retuned.runtime.native.gpu_driver import DriverFailed
from retuned.runtime.schema import Refused

NODES = 3


class Model:
    """A captured graph of several launches, and the numbers that it works on."""

    def __init__(self, played: Played, *, kernel: str = "double", nodes: int = NODES) -> None:
        self.played = played
        self.x = floats(200)
        self.out = [floats(200, fill=0.0) for _ in range(nodes)]
        self.handle = played.capture(self._work(kernel))
        self.instance = played.instantiate(self.handle)
        self.graph = index_graph(
            played.calls,
            self.handle,
            instance=lambda: self.instance,
            owner=lambda: self,
            notes=lambda _: CaptureNotes(),
        )

    def _work(self, kernel: str) -> Any:
        def work() -> None:
            for y in self.out:
                self.played.launch(kernel, self.x, y)

        return work

    def factors(self) -> list[float]:
        """Replay, and return what each launch multiplies by; nan if it missed elements."""
        for y in self.out:
            y[:] = float("nan")
        with self.graph.lock:
            self.graph.replays += 1
            self.played.replay(self.instance)
        return [float(y[7] / 7) if (y == y[7] / 7 * self.x).all() else float("nan")
                for y in self.out]  # fmt: skip

    def close(self) -> None:
        self.played.driver.call(self.played.drop_exec, ctypes.c_void_p(self.instance))
        self.played.driver.call(self.played.drop, ctypes.c_void_p(self.handle))


def triple(played: Played, **changes: Any) -> Change:
    made = Change(
        mark="a",
        function=played.handle("triple"),
        grid=(2, 1, 1),
        block=(128, 1, 1),
        shared_bytes=0,
    )
    return replace(made, **changes)


def steps_for(graph: IndexedGraph, change: Change | None) -> list[Any]:
    made = [prepare(graph, site, change) for site in graph.sites]
    return [step for step in made if step is not None]


def test_a_replay_runs_the_new_kernel_and_after_the_way_back_the_old_one(played: Played) -> None:
    model = Model(played)
    assert model.factors() == [2.0] * NODES
    done = apply(steps_for(model.graph, triple(played)))
    assert (done.nodes, done.graphs) == (NODES, 1)
    assert model.factors() == [3.0] * NODES
    apply(steps_for(model.graph, None))
    assert model.factors() == [2.0] * NODES
    assert [site.mark for site in model.graph.sites] == [None] * NODES
    model.close()


def test_one_node_is_changed_and_its_neighbours_are_not(played: Played) -> None:
    model = Model(played)
    step = prepare(model.graph, model.graph.sites[1], triple(played))
    assert step is not None
    apply([step])
    assert model.factors() == [2.0, 3.0, 2.0]
    model.close()


def test_what_is_instantiated_later_launches_the_same(played: Played) -> None:
    model = Model(played)
    apply(steps_for(model.graph, triple(played)))
    played.driver.call(played.drop_exec, ctypes.c_void_p(model.instance))
    model.instance = played.instantiate(model.handle)
    assert model.factors() == [3.0] * NODES
    apply(steps_for(model.graph, None))
    assert model.factors() == [2.0] * NODES
    model.close()


def test_the_index_says_what_was_captured_in_the_order_of_launches(played: Played) -> None:
    x, y = floats(8), floats(8)

    def work() -> None:
        played.launch("double", x, y, grid=5, block=32)
        played.library.fake_memset(ctypes.c_void_p(0x5000))
        played.launch("triple", x, y, grid=6, block=96)

    handle = played.capture(work)
    graph = index_graph(
        played.calls, handle, instance=lambda: 0, owner=lambda: 1, notes=lambda _: CaptureNotes()
    )
    assert [(s.place, s.name, s.grid, s.block) for s in graph.sites] == [
        (0, "double", (5, 1, 1), (32, 1, 1)),
        (2, "triple", (6, 1, 1), (96, 1, 1)),
    ]
    assert (graph.nodes, graph.others) == (3, 1)
    played.driver.call(played.drop, ctypes.c_void_p(handle))


def test_arguments_that_lie_otherwise_are_never_tried(played: Played) -> None:
    model, before = Model(played), played.counts.sets
    with pytest.raises(Refused) as caught:
        prepare(model.graph, model.graph.sites[0], triple(played, function=played.handle("wide")))
    assert caught.value.reason == "layout-differs"
    assert "[0+8, 8+8, 16+4], the variant's at [0+8, 8+8, 16+8]" in caught.value.detail
    assert played.counts.sets == before
    assert model.factors() == [2.0] * NODES
    model.close()


def test_other_arguments_may_be_given_if_they_are_those_of_the_variant(played: Played) -> None:
    model = Model(played)
    values = (model.x.ctypes.data, model.out[0].ctypes.data, 200)
    given = tuple(value.to_bytes(8, "little") for value in values)
    change = triple(played, function=played.handle("wide"), arguments=given)
    step = prepare(model.graph, model.graph.sites[0], change)
    assert step is not None
    apply([step])
    assert model.factors() == [3.0, 2.0, 2.0]
    with raises_code(Refused, "layout-differs"):
        prepare(model.graph, model.graph.sites[1], triple(
            played, function=played.handle("wide"), arguments=given[:2]))  # fmt: skip
    model.close()


def test_packed_arguments_are_read_too(played: Played) -> None:
    played.library.fake_pack(1)
    model = Model(played)
    apply(steps_for(model.graph, triple(played)))
    assert model.factors() == [3.0] * NODES
    apply(steps_for(model.graph, None))
    assert model.factors() == [2.0] * NODES
    model.close()


def test_a_value_that_compiled_code_takes_for_a_multiple_is_looked_at(played: Played) -> None:
    model = Model(played)
    with pytest.raises(Refused) as caught:
        prepare(model.graph, model.graph.sites[0], triple(played, divisible=((0, 16), (2, 16))))
    assert caught.value.reason == "argument-unaligned"
    assert prepare(model.graph, model.graph.sites[0], triple(played, divisible=((2, 8),)))
    with raises_code(Refused, "layout-differs"):
        prepare(model.graph, model.graph.sites[0], triple(played, divisible=((3, 8),)))
    model.close()


@pytest.mark.parametrize(
    "wrong", [{"grid": (0, 1, 1)}, {"block": (2048, 1, 1)}, {"grid": (1, 70_000, 1)},
              {"block": (1, 1, 128)}]
)  # fmt: skip
def test_a_launch_that_no_device_takes_is_refused(played: Played, wrong: Any) -> None:
    model = Model(played)
    with pytest.raises(Refused) as caught:
        prepare(model.graph, model.graph.sites[0], triple(played, **wrong))
    assert caught.value.reason == "grid-invalid"
    model.close()


@pytest.mark.parametrize(
    ("what", "reason"),
    [(0, "programmatic-edge"), (1, "launch-attribute"), (2, "launch-attribute")],
)
def test_launches_that_agree_with_their_neighbours_are_left_alone(
    played: Played, what: int, reason: str
) -> None:
    model = Model(played)
    node = ctypes.c_void_p(model.graph.sites[1].node)
    played.library.fake_mark(node, what)
    with pytest.raises(Refused) as caught:
        prepare(model.graph, model.graph.sites[1], triple(played))
    assert caught.value.reason == reason
    if what == 0:  # the one before it as well: the agreement is between both
        with raises_code(Refused, "programmatic-edge"):
            prepare(model.graph, model.graph.sites[0], triple(played))
    model.close()


@pytest.mark.parametrize("call", ["fake_fail_exec", "fake_fail_node"])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_refusal_at_any_node_restores_all_nodes_of_all_graphs(
    played: Played, call: str, at: int
) -> None:
    first, second = Model(played), Model(played)
    apply(steps_for(first.graph, triple(played, mark="before", block=(64, 1, 1), grid=(4, 1, 1))))
    steps = steps_for(first.graph, triple(played, mark="new"))
    steps += steps_for(second.graph, triple(played, mark="new"))
    getattr(played.library, call)(at, 1)
    with raises_naming(DriverFailed, "SetParams"):
        apply(steps)
    assert first.factors() == [3.0] * NODES
    assert second.factors() == [2.0] * NODES
    assert [site.mark for site in first.graph.sites] == ["before"] * NODES
    assert [site.mark for site in second.graph.sites] == [None] * NODES
    for model in (first, second):  # what it was made from is restored as well
        assert model.graph.broken == ""
        again = played.instantiate(model.handle)
        played.driver.call(played.drop_exec, ctypes.c_void_p(model.instance))
        model.instance = again
    assert (first.factors(), second.factors()) == ([3.0] * NODES, [2.0] * NODES)
    apply(steps_for(second.graph, triple(played)))
    assert second.factors() == [3.0] * NODES
    first.close()
    second.close()


def test_a_change_that_does_not_show_is_taken_back(played: Played) -> None:
    model = Model(played)
    steps = steps_for(model.graph, triple(played))
    played.library.fake_wrong_readback(1)
    with pytest.raises(Refused) as caught:
        apply(steps)
    assert caught.value.reason == "not-applied"
    played.library.fake_wrong_readback(0)
    assert model.factors() == [2.0] * NODES
    model.close()


def test_a_function_of_another_context_is_refused_by_the_driver_and_nothing_changes(
    played: Played,
) -> None:
    model = Model(played)
    other = played.driver.load(KERNELS)
    kernel = played.driver.kernel(other, "triple")
    played.library.fake_other_context(kernel)
    if played.vendor == "amd":
        played.calls.learn(int(kernel.value or 0), played.calls.layout(played.handle("triple")))
    steps = steps_for(model.graph, triple(played, function=int(kernel.value or 0)))
    with pytest.raises(DriverFailed) as caught:
        apply(steps)
    assert caught.value.code == 1
    assert model.factors() == [2.0] * NODES
    played.driver.unload(other)
    model.close()


def test_a_graph_that_cannot_be_restored_is_named_and_left_alone(
    played_library: Path,
) -> None:
    played = Played("nvidia", played_library)
    model = Model(played)
    steps = steps_for(model.graph, triple(played))
    played.library.fake_fail_exec(2, 700)  # the context breaks at the second node
    with pytest.raises(DriverFailed) as caught:
        apply(steps)
    assert caught.value.reason == "device-lost"
    assert model.graph.broken == "device-lost"
    with pytest.raises(Refused) as caught_again:
        prepare(model.graph, model.graph.sites[0], triple(played))
    assert caught_again.value.reason == "graph-broken"
    played.library.fake_heal()


def test_a_graph_that_is_gone_meanwhile_is_passed_over(played: Played) -> None:
    first, second = Model(played), Model(played)
    steps = [*steps_for(first.graph, triple(played)), *steps_for(second.graph, triple(played))]
    first.graph.gone = True
    first.close()
    done = apply(steps)
    assert (done.nodes, done.graphs) == (NODES, 1)
    assert second.factors() == [3.0] * NODES
    second.close()


def test_a_node_that_is_no_kernel_has_no_launch(played: Played) -> None:
    handle = played.capture(lambda: played.library.fake_memset(ctypes.c_void_p(0x5000)))
    (node,) = played.calls.nodes(handle)
    assert not played.calls.is_kernel(node)
    with pytest.raises(DriverFailed) as caught:
        played.calls.raw_params(node)
    assert caught.value.code == 1
    played.driver.call(played.drop, ctypes.c_void_p(handle))


def test_errors_of_ours_are_not_left_for_the_servers_own_checks(played_library: Path) -> None:
    played = Played("amd", played_library)
    with pytest.raises(DriverFailed):
        played.calls.raw_params(played.calls.nodes(played.capture(
            lambda: played.library.fake_memset(ctypes.c_void_p(0x5000))))[0])  # fmt: skip
    assert played.counts.last_error == 0


def test_ten_thousand_changes_leave_nothing_behind(played: Played) -> None:
    model = Model(played, nodes=1)
    change = triple(played)

    def cycle(times: int) -> None:
        for _ in range(times):
            apply(steps_for(model.graph, change))
            apply(steps_for(model.graph, None))

    cycle(100)
    gc.collect()
    counts = (played.counts.graphs, played.counts.nodes, played.counts.kernels)
    tracemalloc.start()
    cycle(100)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    cycle(200)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    cycle(9_600 if played.vendor == "nvidia" else 100)
    assert grown < 20_000, "bytes that stay after 200 cycles"
    assert counts == (played.counts.graphs, played.counts.nodes, played.counts.kernels)
    assert model.factors() == [2.0]
    model.close()


def test_replays_on_other_threads_see_all_of_a_graph_changed_or_none(played: Played) -> None:
    model = Model(played)
    stop, seen = threading.Event(), []

    def serve() -> None:
        played.driver.enter()
        while not stop.is_set():
            with model.graph.lock:
                seen.append(tuple(model.factors()))

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        apply(steps_for(model.graph, triple(played)))
        apply(steps_for(model.graph, None))
    stop.set()
    for thread in threads:
        thread.join()
    assert set(seen) <= {(2.0,) * NODES, (3.0,) * NODES}
    assert played.counts.raced == 0, "nobody launched an instance while it was changed"
    model.close()
