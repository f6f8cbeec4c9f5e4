"""Graphs follow their slots: captured by PyTorch's methods, noted, swapped, rolled back."""

from __future__ import annotations

import gc
import os
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code
from tests.runtime.graphs.played import (
    KERNELS,
    Played,
    PlayedTensor,
    floats,
    played_torch,
)

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.attach import attach
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.orders import Order
from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs import report
from retuned.runtime.graphs.followers import Graphs
from retuned.runtime.graphs.report import graphs_state, slot_graphs
from retuned.runtime.graphs.service import HostedGraphs
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.runtime.native.gpu_variant import GpuVariant
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import Refused, parse_spec
from retuned.runtime.shadow.sampler import bucket, compare_tensors

DEFINITION = {
    "name": "scale",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}


class PlayedVariant(GpuVariant):
    """A variant as it is loaded, without a PyTorch: y = 3 x, and other arguments."""

    def __init__(self, played: Played, kernel: GpuKernel, *, floats_of_scratch: int = 0) -> None:
        self.spec, self.packed = parse_spec(DEFINITION), PackedWeights()
        self.repacked: list[tuple[int, str]] = []
        self._device = PlayedTensor(floats(1)).device
        self._kernel, self._floats, self._played = kernel, floats_of_scratch, played

    def launcher(self, key: tuple[int, ...]) -> Callable[..., Any]:
        def launch(inputs: tuple[PlayedTensor, ...]) -> PlayedTensor:
            y = PlayedTensor(floats(key[0], fill=0.0))
            self._played.launch("triple", inputs[0].array, y.array)
            return y

        return launch

    def capturing(self) -> Callable[[], bool]:
        return lambda: self._played.capturing() is not None


class Server:
    """A server with one kernel, its PyTorch, and Retuned in it."""

    def __init__(self, played: Played, *, hooks: bool = False) -> None:
        self.played = played
        self.torch = played_torch(played, hooks=hooks)
        self.graphs = Graphs(lambda _: played.calls, capturing=played.capturing, device=lambda: 0)
        self.methods = dict(vars(self.torch.cuda.CUDAGraph))
        assert self.graphs.install(self.torch)
        self.launched = ["double"]
        self.slot = Slot(DEFINITION, self.original)
        self.graphs.add_slot(self.slot)
        self.kernels: list[GpuKernel] = []
        self.epoch = 0

    def original(self, x: PlayedTensor) -> PlayedTensor:
        y = PlayedTensor(floats(x.shape[0], fill=0.0))
        for kernel in self.launched:
            self.played.launch(kernel, x.array, y.array)
        return y

    def graph(self, *, keep: bool = False) -> Any:
        return self.torch.cuda.CUDAGraph(keep_graph=keep)

    def capture(self, *lengths: int, graph: Any = None) -> tuple[Any, list[Any]]:
        """Capture one launch for every length; return the graph and what replays of it give."""
        graph = graph or self.graph()
        given = [PlayedTensor(floats(length)) for length in lengths]
        graph.capture_begin()
        made = [self.slot(x) for x in given]
        graph.capture_end()
        graph.given = given  # a graph's inputs live as long as it
        return graph, made

    def variant(self, entry: str = "wide", **facts: Any) -> PlayedVariant:
        kernel = GpuKernel(
            KERNELS,
            entry=entry,
            params={"BLOCK_X": 64},
            grid=("cdiv(M, BLOCK_X)",),
            tensors=2,
            axes=["M"],
            driver=self.played.driver,
        )
        self.kernels.append(kernel)
        return PlayedVariant(self.played, kernel, **facts)

    def order(
        self,
        variant: PlayedVariant | None,
        *,
        low: int = 1,
        high: int = 4096,
        fraction: float = 1.0,
    ) -> Swapped:
        """Put an order in force, as the host does."""
        self.epoch += 1
        order = Order(
            id=f"order-{self.epoch}",
            kind="swap",
            definition="scale",
            artifact=None if variant is None else "sha256:" + "a" * 64,
            previous=None,
            guard={"bounds": {"M": [low, high]}},
            epoch=self.epoch,
            fraction=fraction,
            shadow_every=10**9,
            shadow_tolerance=0.01,
        )
        made = Swapped(self.slot, order, variant=variant, compare=compare_tensors)
        self.slot.commit(made)
        return made

    def state(self) -> dict[str, Any]:
        return slot_graphs(self.graphs, self.slot)

    def close(self) -> None:
        self.graphs.close()
        for kernel in self.kernels:
            kernel.unload()


@pytest.fixture
def server(played: Played) -> Iterator[Server]:
    made = Server(played)
    yield made
    made.close()


def nodes(server: Server) -> list[Any]:
    return server.graphs.index.where(lambda site: site.note is not None)


def factor(graph: Any, made: list[Any]) -> list[float]:
    """Replay, and return what each launch multiplies by."""
    for y in made:
        y.array[:] = float("nan")
    graph.replay()
    found = [float(y.array[3] / 3) for y in made]
    assert all(
        (y.array == by * floats(y.shape[0])).all() for y, by in zip(made, found, strict=True)
    )
    return found


def test_a_graph_captured_before_the_order_is_swapped_and_taken_back(server: Server) -> None:
    graph, made = server.capture(64, 100)
    assert factor(graph, made) == [2.0, 2.0]
    server.order(server.variant())
    assert factor(graph, made) == [3.0, 3.0]
    assert server.state() == {"nodes": 2, "swapped": 2, "unreachable": {}, "launches": 2}
    server.order(None)
    assert factor(graph, made) == [2.0, 2.0]
    assert server.state() == {"nodes": 2, "swapped": 0, "unreachable": {}, "launches": 0}


def test_a_graph_captured_under_an_order_records_the_original_and_is_swapped_at_once(
    server: Server,
) -> None:
    server.order(server.variant())
    graph, made = server.capture(64)
    assert nodes(server)[0][1].name == "double"
    assert factor(graph, made) == [3.0]
    server.order(None)
    assert factor(graph, made) == [2.0]


def test_only_lengths_within_the_guard_are_swapped(server: Server) -> None:
    graph, made = server.capture(64, 100, 128)
    server.order(server.variant(), low=90, high=110)
    assert factor(graph, made) == [2.0, 3.0, 2.0]
    server.order(server.variant(), low=120)  # another guard: the way back of one, the swap of one
    assert factor(graph, made) == [2.0, 2.0, 3.0]


def test_a_breaker_and_a_bypass_reach_graphs(server: Server) -> None:
    graph, made = server.capture(64)
    order = server.order(server.variant())
    assert server.slot.replace(order, state="bypassed")
    assert factor(graph, made) == [2.0]
    assert server.slot.replace(order, state="swapped")
    assert factor(graph, made) == [3.0]
    order.trip("shadow-mismatch", "ratio 9")
    assert factor(graph, made) == [2.0]
    assert server.slot.table.state == "tripped:shadow-mismatch"


def test_graphs_keep_the_original_until_a_canary_is_over(server: Server) -> None:
    graph, made = server.capture(64)
    order = server.order(server.variant(), fraction=0.5)
    assert factor(graph, made) == [2.0]
    order.ramp(1.0, excluded=())
    assert factor(graph, made) == [3.0]
    order.ramp(1.0, excluded=[bucket((64,))])
    assert factor(graph, made) == [2.0], "a bucket that is left out later goes back"
    order.ramp(1.0, excluded=())
    order.ramp(0.0, excluded=())
    assert factor(graph, made) == [2.0]


def test_the_same_variant_by_a_later_order_counts_from_then_on(server: Server) -> None:
    graph, made = server.capture(64)
    variant = server.variant()
    server.order(variant)
    factor(graph, made)
    factor(graph, made)
    assert server.state()["launches"] == 2
    before = server.played.counts.sets
    server.order(variant)
    assert server.played.counts.sets == before, "the node launches that already"
    factor(graph, made)
    assert server.state()["launches"] == 1


def test_an_order_of_another_kernel_with_the_same_id_is_not_credited_with_these_replays(
    server: Server,
) -> None:
    graph, _ = server.capture(100)
    in_force = server.order(server.variant())
    graph.replay()
    other = Slot(DEFINITION | {"name": "scale_other"}, server.original)
    order = replace(in_force.order, definition="scale_other")
    swapped = Swapped(other, order, variant=server.variant(), compare=compare_tensors)
    other.commit(swapped)
    assert report.graph_launches(server.graphs, server.slot) == 1
    assert report.graph_launches(server.graphs, other) == 0


def test_a_launch_of_several_kernels_is_no_single_node(server: Server) -> None:
    server.launched = ["double", "double"]
    graph, made = server.capture(64)
    server.order(server.variant())
    assert factor(graph, made) == [2.0]
    assert server.state()["unreachable"] == {"several-nodes": 1}
    (shown,) = graphs_state(server.graphs)["graphs"]
    assert shown["unreachable"] == {"several-nodes": 1, "not-noted": 2}


def test_a_launch_that_records_nothing_is_no_node(server: Server) -> None:
    server.launched = []
    kept = server.capture(64)
    assert server.state()["unreachable"] == {"no-node": 1}
    del kept
    gc.collect()
    assert server.state()["unreachable"] == {}


def test_what_cannot_be_reached_is_named_and_keeps_the_original(played_library: Path) -> None:
    server = Server(Played("nvidia", played_library))  # AMD's driver does not tell of arguments
    graph, made = server.capture(64)
    variant = server.variant("double")  # three arguments of 8, 8 and 4 bytes, not of 8 each
    server.order(variant)
    assert factor(graph, made) == [2.0]
    assert server.state()["unreachable"] == {"layout-differs": 1}
    server.order(server.variant())
    assert factor(graph, made) == [3.0]
    assert server.state()["unreachable"] == {}
    server.close()


def test_a_node_that_was_given_other_tensors_is_another_launch(server: Server) -> None:
    graph, made = server.capture(64)
    ((_, site),) = nodes(server)
    assert site.note is not None
    wrong = replace(site.note.outputs[0], address=site.note.outputs[0].address + 64)
    site.note = replace(site.note, outputs=(wrong,))
    server.order(server.variant())
    assert server.state()["unreachable"] == {"arguments-unmatched": 1}
    assert factor(graph, made) == [2.0]


@pytest.mark.parametrize(
    "wrong", [{"dtype": "float16"}, {"dense": False}, {"device": 1}, {"shape": (65,)}]
)
def test_tensors_that_a_variant_does_not_take_keep_the_original(
    server: Server, wrong: dict[str, Any]
) -> None:
    graph, made = server.capture(64)
    ((_, site),) = nodes(server)
    assert site.note is not None
    site.note = replace(site.note, inputs=(replace(site.note.inputs[0], **wrong),))
    server.order(server.variant())
    assert server.state()["unreachable"] == {"tensor-kind": 1}
    assert factor(graph, made) == [2.0]


def test_a_driver_that_refuses_at_a_late_node_leaves_all_graphs_on_the_original(
    server: Server,
) -> None:
    graphs = [server.capture(64, 100) for _ in range(3)]
    server.played.library.fake_fail_exec(5, 1)
    server.order(server.variant())
    assert [factor(*one) for one in graphs] == [[2.0, 2.0]] * 3
    assert server.state()["unreachable"] == {"out-of-resources": 6}
    late, made = server.capture(64)  # the order is still in force, and not tried again
    assert factor(late, made) == [2.0]
    server.order(server.variant())
    assert [factor(*one) for one in graphs] == [[3.0, 3.0]] * 3


def test_a_variant_that_fails_after_another_one_leaves_the_original(server: Server) -> None:
    graph, made = server.capture(64, 100)
    server.order(server.variant())
    server.played.library.fake_fail_exec(2, 1)
    second = server.variant()
    server.order(second)
    assert factor(graph, made) == [2.0, 2.0]
    assert [site.mark for _, site in nodes(server)] == [None, None]


def test_an_order_during_a_capture_waits_for_its_end(server: Server) -> None:
    done, made = server.capture(64)
    graph, x = server.graph(), PlayedTensor(floats(32))
    graph.capture_begin()
    y = server.slot(x)
    server.order(server.variant())
    assert factor(done, made) == [2.0], "nothing is changed while something is captured"
    graph.capture_end()
    assert factor(graph, [y]) == [3.0]
    assert factor(done, made) == [3.0], "all of the slot's graphs follow at its end"


def test_a_capture_that_fails_is_forgotten(server: Server) -> None:
    graph = server.graph()
    graph.capture_begin()
    server.slot(PlayedTensor(floats(64)))
    other = server.graph()
    with pytest.raises(Refused):
        other.capture_begin()  # a stream is captured once
    assert server.graphs.gate.captures == 1
    graph.capture_end()
    assert server.graphs.gate.captures == 0
    assert len(server.graphs.index) == 1


def test_graphs_behave_as_their_server_expects(played: Played) -> None:
    for hooks in (False, True):
        server = Server(played, hooks=hooks)
        plain, made = server.capture(64)
        assert plain.exec, "instantiated at the end of the capture, as without Retuned"
        kept, kept_made = server.capture(64, graph=server.graph(keep=True))
        assert not kept.exec
        server.order(server.variant())
        assert (factor(plain, made), factor(kept, kept_made)) == ([3.0], [3.0])
        plain.reset()
        assert not plain.graph
        assert not plain.exec
        assert len(server.graphs.index) == 1
        kept.instantiate()
        assert factor(kept, kept_made) == [3.0]
        server.close()


def test_a_graph_can_be_captured_anew_after_a_reset(server: Server) -> None:
    graph, _ = server.capture(64)
    server.order(server.variant())
    graph.reset()
    graph, made = server.capture(100, graph=graph)
    assert factor(graph, made) == [3.0]
    assert server.state()["nodes"] == 1


def test_graphs_that_are_dropped_leave_nothing(server: Server) -> None:
    gc.collect()
    before = server.played.counts.nodes
    for _ in range(20):
        server.capture(64)
    gc.collect()
    assert len(server.graphs.index) == 0
    assert server.played.counts.nodes == before
    server.order(server.variant())
    assert server.state()["nodes"] == 0


def test_a_graph_captured_before_retuned_is_counted_and_left_alone(played: Played) -> None:
    server = Server(played)
    server.graphs.torch.uninstall()
    graph = server.graph()
    x, y = floats(64), PlayedTensor(floats(64))
    graph.capture_begin()
    played.launch("double", x, y.array)
    graph.capture_end()
    assert server.graphs.install(server.torch)
    server.order(server.variant())
    for _ in range(3):
        assert factor(graph, [y]) == [2.0]
    assert graphs_state(server.graphs)["captured_before"] == 1
    server.close()


def test_closing_gives_back_nodes_and_methods(played: Played) -> None:
    server = Server(played)
    graph, made = server.capture(64)
    server.order(server.variant())
    server.graphs.close()
    assert factor(graph, made) == [2.0]
    now = vars(server.torch.cuda.CUDAGraph)
    assert {name: now.get(name) for name in server.methods} == server.methods
    assert "__init__" not in now
    server.close()


def test_a_pytorch_that_cannot_keep_graphs_is_left_alone(played: Played) -> None:
    class CUDAGraph:
        def __new__(cls) -> Any:
            return super().__new__(cls)

        def capture_begin(self) -> None: ...

        capture_end = instantiate = replay = reset = raw_cuda_graph = capture_begin
        raw_cuda_graph_exec = capture_begin

    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(CUDAGraph=CUDAGraph))
    graphs = Graphs(lambda _: played.calls, capturing=lambda: None, device=lambda: 0)
    assert not graphs.install(torch)
    assert graphs_state(graphs)["reason"] == "graphs-not-kept"
    assert not graphs.install(types.SimpleNamespace())


def test_replays_go_on_while_orders_come_and_go(server: Server) -> None:
    graphs = [server.capture(64, 100) for _ in range(2)]
    stop, seen = threading.Event(), set()
    variant = server.variant()

    def serve(graph: Any, made: list[Any]) -> None:
        server.played.driver.enter()
        while not stop.is_set():
            seen.add(tuple(factor(graph, made)))

    threads = [threading.Thread(target=serve, args=one) for one in graphs]
    for thread in threads:
        thread.start()
    for _ in range(100):
        server.order(variant)
        server.order(None)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= {(2.0, 2.0), (3.0, 3.0)}
    assert server.played.counts.raced == 0
    assert [factor(*one) for one in graphs] == [[2.0, 2.0]] * 2


def test_launches_are_noted_only_while_something_is_captured(server: Server) -> None:
    kept = server.capture(64)
    noting = [server.slot.recorder is not None]
    server.graphs.housekeeping()
    noting.append(server.slot.recorder is not None)
    assert noting == [True, False]
    assert factor(*kept) == [2.0]
    graph, made = server.capture(64)
    server.order(server.variant())
    assert factor(graph, made) == [3.0]


def test_a_server_whose_driver_is_broken_keeps_capturing(server: Server) -> None:
    def broken(_: int) -> Any:
        raise Refused("driver-missing", detail="gone")

    server.graphs._calls_of = broken
    server.graphs.recorder._calls_of = broken
    graph, made = server.capture(64)
    assert factor(graph, made) == [2.0]
    assert graphs_state(server.graphs)["failures"] == {"driver-missing": 1}


def test_the_host_tells_of_graphs_in_pages_and_gives_slots_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_SHOWN", 2)
    host = RuntimeHost("server")
    host._seating.graphs = HostedGraphs(None, graphs=lambda: server.graphs)
    server.graphs.remove_slot(server.slot)
    assert not server.graphs.torch.installed, "nobody is left whom to follow"
    assert server.graphs.install(server.torch)
    host.add(server.slot)
    kept = [server.capture(64) for _ in range(3)]
    server.order(server.variant())
    assert [factor(*one) for one in kept] == [[3.0]] * 3
    first = host.answer({"op": "graphs"})
    second = host.answer({"op": "graphs", "after": first["graphs"][-1]["graph"]})
    assert [len(first["graphs"]), first["more"], len(second["graphs"]), second["more"]] == [
        *(2, True, 1, False)
    ]
    assert first["graphs"][0] | {"graph": 0} == {
        "graph": 0, "nodes": 1, "kernels": 1, "noted": 1, "swapped": 1, "unreachable": {},
        "replays": 1, "replays_since_change": 1, "broken": "",
    }  # fmt: skip
    (slot,) = host.answer({"op": "slots"})["slots"]
    assert slot["graph"] == {"nodes": 3, "swapped": 3, "unreachable": {}, "launches": 3}
    (sample,) = host.answer({"op": "samples"})["samples"]
    assert (sample["graph_launches"], sample["swapped_launches"]) == (3, 3)
    kept.pop()
    gc.collect()
    assert len(server.graphs.index) == 2
    (sample,) = host.answer({"op": "samples"})["samples"]
    assert sample["graph_launches"] == 3, "those of a graph that is gone still count"
    for wrong in (-1, "1", True, None):
        with raises_code(Refused, "bad-request", "'after'"):
            host.answer({"op": "graphs", "after": wrong})
    host.reset()
    assert [factor(*one) for one in kept] == [[2.0]] * 2


def test_a_forked_child_has_none_of_its_parents_graphs(server: Server) -> None:
    kept = server.capture(64)
    server.order(server.variant())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        server.graphs.abandon()
        os.write(write, str((len(server.graphs.index), server.graphs.gate.captures)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"(0, 0)"
    os.close(read)
    os.close(write)
    assert factor(*kept) == [3.0], "the parent's go on"


def test_what_cannot_be_changed_can_be_captured_again_and_goes_back_by_itself(
    server: Server,
) -> None:
    server.launched = ["double", "double"]  # two nodes: no single one can be changed
    serves = [server.capture(64)]

    def again() -> None:
        serves[0] = server.capture(64)

    withdraw = server.graphs.recapture.offer(again)
    server.order(server.variant())
    assert factor(*serves[0]) == [2.0]
    assert server.state()["unreachable"] == {"several-nodes": 1}
    assert server.graphs.recapture.run() == 1
    assert factor(*serves[0]) == [3.0]
    assert server.state()["unreachable"] == {}
    assert server.state()["launches"] == 1
    server.order(None)
    assert server.state()["unreachable"] == {"recorded": 1}
    assert factor(*serves[0]) == [3.0], "until it is captured again"
    server.graphs.housekeeping()
    assert factor(*serves[0]) == [2.0]
    assert not server.graphs.recapture.wanted
    withdraw()
    with raises_code(Refused, "recapture-unavailable"):
        server.graphs.recapture.run()


def test_a_server_that_fails_to_capture_again_goes_on_with_what_it_has(server: Server) -> None:
    kept = server.capture(64)

    def broken() -> None:
        raise ValueError("no memory for that")

    server.graphs.recapture.offer(broken)
    with pytest.raises(Refused) as caught:
        server.graphs.recapture.run()
    assert caught.value.reason == "recapture-failed"
    assert graphs_state(server.graphs)["recapture"]["failures"] == 1
    assert not server.graphs.recapture.under_way
    assert factor(*kept) == [2.0]


def test_a_server_offers_to_capture_again_by_its_runtime() -> None:
    runtime, captured = attach(server="graphs"), []
    try:
        withdraw = runtime.graph(capture=lambda: captured.append(1))
        assert runtime._host.answer({"op": "recapture"}) == {"captured": 1}
        assert captured == [1]
        withdraw()
        with pytest.raises(Refused) as caught:
            runtime._host.answer({"op": "recapture"})
        assert caught.value.reason == "recapture-unavailable"
    finally:
        runtime.close()


def test_pytorch_itself_can_be_followed_and_left_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    graphs = Graphs(lambda _: pytest.fail("no device"), capturing=lambda: None, device=lambda: 0)
    before = dict(vars(torch.cuda.CUDAGraph))
    if not graphs.install(torch):
        assert graphs.reason == "graphs-not-kept"
        assert dict(vars(torch.cuda.CUDAGraph)) == before
        return
    assert torch.cuda.CUDAGraph.replay.__wrapped__ is before["replay"]
    graphs.close()
    assert {name: vars(torch.cuda.CUDAGraph).get(name) for name in before} == before
    assert ("__init__" in vars(torch.cuda.CUDAGraph)) == ("__init__" in before)
