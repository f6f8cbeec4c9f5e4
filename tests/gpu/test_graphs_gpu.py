"""Swaps inside graphs captured on a real GPU: right numbers, the way back, and what it costs.

``python -m tests.gpu.test_graphs_gpu`` prints what `measure` returns.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, name-defined"

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tests.runtime.intercept.test_intercept_swapping import World  # noqa: E402

from retuned.runtime.graphs import process  # noqa: E402
from retuned.runtime.graphs.followers import Graphs  # noqa: E402
from retuned.runtime.graphs.index import IndexedGraph, Site  # noqa: E402
from retuned.runtime.graphs.node_swap import Change, apply, original_of, prepare  # noqa: E402
from retuned.runtime.graphs.variants import triton_launch  # noqa: E402
from retuned.runtime.intercept.hook import Interceptor  # noqa: E402
from retuned.runtime.schema import Refused  # noqa: E402

_GPU = bool(torch.cuda.is_available()) and not triton.knobs.runtime.interpret

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _GPU, reason="no GPU that PyTorch can use"),
]

ROWS = 4096


@triton.jit
def add_two(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """y = x + 2."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + 2, mask=inside)


@triton.jit
def add_three(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """y = x + 3: what it computes shows which of the two ran."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + 3, mask=inside)


@triton.jit
def add_four_numbers(x_ptr, y_ptr, n, more, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """Takes one argument more than the others."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + more, mask=inside)


def compiled(kernel: Any, *more: Any, block: int, num_warps: int = 4) -> Any:
    """Compile and load a kernel for the model's tensors, as a variant is prepared."""
    like = torch.float32
    found = kernel.warmup(like, like, ROWS, *more, BLOCK=block, num_warps=num_warps, grid=(1,))
    found._init_handles()
    return found


def change_to(found: Any, *, block: int, mark: str = "variant") -> Change:
    function, threads, shared_bytes = triton_launch(found)
    return Change(
        mark=mark,
        function=function,
        grid=(triton.cdiv(ROWS, block), 1, 1),
        block=threads,
        shared_bytes=shared_bytes,
        keeps=(found,),
    )


class Model:
    """A few operations of PyTorch around launches of a Triton kernel, captured."""

    def __init__(self, graphs: Graphs, *, launches: int = 4) -> None:
        self.x = torch.arange(ROWS, device="cuda", dtype=torch.float32) / ROWS
        self.weight = torch.eye(64, device="cuda")
        self.launches = launches
        self.forward()
        torch.cuda.synchronize()
        self.cuda_graph = torch.cuda.CUDAGraph()
        before = {graph.number for graph in graphs.index}
        with torch.cuda.graph(self.cuda_graph):
            self.y = self.forward()
        (self.graph,) = [graph for graph in graphs.index if graph.number not in before]

    def forward(self) -> Any:
        y = torch.relu(self.x)
        self.copied = y.clone()  # a copy: a node that is no kernel
        for _ in range(self.launches):
            z = torch.empty_like(y)
            add_two[(triton.cdiv(ROWS, 256),)](y, z, ROWS, BLOCK=256)
            y = z
        return (y.view(64, 64) @ self.weight).flatten()

    def sites(self) -> list[Site]:
        return [site for site in self.graph.sites if site.launch is not None]

    def added(self) -> float:
        """Replay, and return what all launches together have added."""
        self.y.zero_()
        self.cuda_graph.replay()
        torch.cuda.synchronize()
        difference = (self.y - self.x).round()
        assert (difference == difference[0]).all()
        return float(difference[0])


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    found = process.process_graphs()
    assert found.torch.installed, found.reason
    yield found
    found.housekeeping()


def swapped(graph: IndexedGraph, sites: list[Site], change: Change | None) -> int:
    with graph.calls.current():
        steps = [prepare(graph, site, change) for site in sites]
    return apply([step for step in steps if step is not None]).nodes


def test_a_replay_runs_the_new_kernel_and_after_the_way_back_the_old_one(graphs: Graphs) -> None:
    model = Model(graphs)
    sites = model.sites()
    assert [site.launch.name for site in sites] == [f"{__name__}:add_two"] * 4
    assert all("add_two" in site.name for site in sites)
    assert model.added() == 8.0
    change = change_to(compiled(add_three, block=512, num_warps=8), block=512)
    assert swapped(model.graph, sites[:1], change) == 1
    assert model.added() == 9.0
    assert swapped(model.graph, sites, change) == 3
    assert model.added() == 12.0
    assert model.graph.launches_of("variant") == 5
    model.cuda_graph.instantiate()
    assert model.added() == 12.0, "what is instantiated later launches the same"
    assert swapped(model.graph, sites, None) == 4
    assert model.added() == 8.0


def test_replays_that_are_under_way_end_with_what_they_were_launched_with(graphs: Graphs) -> None:
    model = Model(graphs, launches=64)
    change = change_to(compiled(add_three, block=256), block=256)
    assert model.added() == 128.0
    for _ in range(50):
        for wanted in (change, None):
            model.cuda_graph.replay()  # not waited for
            swapped(model.graph, model.sites(), wanted)
    assert model.added() == 128.0


def test_a_kernel_with_other_arguments_is_refused_before_anything_changes(graphs: Graphs) -> None:
    model = Model(graphs)
    other = change_to(compiled(add_four_numbers, 7.5, block=256), block=256)
    with model.graph.calls.current(), pytest.raises(Refused) as caught:
        prepare(model.graph, model.sites()[0], other)
    assert caught.value.reason == "layout-differs"
    assert model.added() == 8.0


def test_a_refusal_of_the_real_driver_restores_all_nodes(graphs: Graphs) -> None:
    model = Model(graphs)
    change = change_to(compiled(add_three, block=256), block=256)
    calls = model.graph.calls
    with calls.current():
        first, second, third = (prepare(model.graph, site, change) for site in model.sites()[:3])
        others = [n for n in calls.nodes(model.graph.graph) if not calls.is_kernel(n)]
    assert first, second
    assert third is not None
    assert others, "the model copies a tensor, which is no kernel"
    bad = replace(third, site=replace(third.site, node=others[0]))
    with pytest.raises(Refused):
        apply([step for step in (first, second, bad) if step is not None])
    assert model.graph.broken == ""
    assert model.added() == 8.0


def test_every_kernel_node_of_pytorch_can_be_read_and_put_back(graphs: Graphs) -> None:
    model = Model(graphs)
    before = model.added()
    calls, reasons = model.graph.calls, []
    with calls.current():
        for site in model.graph.sites:
            try:
                packed = original_of(model.graph, site)
            except Refused as error:
                reasons.append(error.reason)
                continue
            with model.graph.lock:
                calls.set_exec(model.graph.instance(), site.node, packed)
    assert set(reasons) <= {"launch-attribute", "programmatic-edge", "layout-unknown"}, reasons
    assert model.added() == before


DEFINITION = {
    "name": "lifted_add",
    "op_type": "lifted",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["N"], "dtype": "float32"}},
}
OTHER = """import triton
import triton.language as tl


@triton.jit
def add_other(out, x, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + 3, mask=inside)
"""


def test_an_order_for_an_intercepted_kernel_reaches_graphs_captured_before(
    graphs: Graphs, tmp_path: Path
) -> None:
    hook = Interceptor()
    hook.install()
    world = World(hook, tmp_path)
    try:
        model = Model(graphs)
        assert model.added() == 8.0
        delivered = world.artifact(
            "add_two",
            definition=DEFINITION,
            source=OTHER,
            entry="add_other",
            params={"TILE": 512, "num_warps": 8},
            grid=["cdiv(n, TILE)"],
            intercept={
                "code": "artifact",
                "axes": {"N": "n"},
                "constexprs": {"BLOCK": 256},
                "bind": {"x": "x_ptr", "out": "y_ptr"},
            },
        )
        world.swap(delivered, "lifted_add", shadow_tolerance=1.0)  # it adds one more, as allowed
        (slot,) = world.host.answer({"op": "slots"})["slots"]
        assert slot["graph"]["unreachable"] == {}
        assert slot["graph"]["swapped"] >= 4
        assert model.added() == 12.0
        assert world.sample()["graph_launches"] >= 4
        late = Model(graphs)
        assert late.added() == 12.0, "captured under the order, and swapped at once"
        world.back("lifted_add")
        assert (model.added(), late.added()) == (8.0, 8.0)
    finally:
        world.host.reset()
        hook.uninstall()


# --- what it costs --------------------------------------------------------------------------------


def _median_us(times_ns: list[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    return {
        "median_us": statistics.median(ordered) / 1000,
        "p10_us": ordered[len(ordered) // 10] / 1000,
        "p90_us": ordered[9 * len(ordered) // 10] / 1000,
        "samples": float(len(ordered)),
    }


def _timed(work: Callable[[], Any], *, times: int) -> list[int]:
    found = []
    for _ in range(times):
        start_ns = time.perf_counter_ns()
        work()
        found.append(time.perf_counter_ns() - start_ns)
    return found


def _swap_cost(graphs: Graphs, launches: int, *, times: int) -> dict[str, Any]:
    """Time preparing, changing and taking back all nodes of one graph, per node."""
    model = Model(graphs, launches=launches)
    sites = model.sites()
    change = change_to(compiled(add_three, block=256), block=256)
    found: dict[str, list[int]] = {"prepare": [], "swap": [], "prepare_back": [], "rollback": []}
    for _ in range(times):
        for words, wanted in ((("prepare", "swap"), change), (("prepare_back", "rollback"), None)):
            start_ns = time.perf_counter_ns()
            with model.graph.calls.current():
                steps = [prepare(model.graph, site, wanted) for site in sites]
            ready_ns = time.perf_counter_ns()
            done = apply([step for step in steps if step is not None])
            assert done.nodes == launches
            found[words[0]].append((ready_ns - start_ns) // launches)
            found[words[1]].append(done.took_ns // launches)
    assert model.added() == 2.0 * launches
    return {"nodes": launches, **{name: _median_us(times_ns) for name, times_ns in found.items()}}


def _replay_cost(graphs: Graphs, *, times: int) -> dict[str, Any]:
    """Time the host's part of a replay, with our lock and counter and without, in turns."""
    model = Model(graphs, launches=2)
    ours = type(model.cuda_graph).replay
    stock = ours.__wrapped__
    found: dict[str, list[int]] = {"followed": [], "stock": []}
    for _ in range(times):
        for name, replay in (("followed", ours), ("stock", stock)):
            torch.cuda.synchronize()
            found[name] += _timed(functools.partial(replay, model.cuda_graph), times=5)[1:]
    return {name: _median_us(times_ns) for name, times_ns in found.items()}


def _capture_cost(graphs: Graphs, *, launches: int = 64, times: int = 20) -> dict[str, Any]:
    """Time the same capture with graphs followed and without, in turns."""
    x, y = (torch.zeros(ROWS, device="cuda") for _ in range(2))

    def record() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            for _ in range(launches):
                add_two[(16,)](x, y, ROWS, BLOCK=256)

    found: dict[str, list[int]] = {"followed": [], "stock": []}
    record()
    for _ in range(times):
        found["followed"] += _timed(record, times=1)
        graphs.torch.uninstall()
        graphs.triton.off()
        found["stock"] += _timed(record, times=1)
        graphs.install(torch)
    return {"launches": launches, **{name: _median_us(of_ns) for name, of_ns in found.items()}}


def _nodes(graphs: Graphs) -> list[dict[str, Any]]:
    """Say what PyTorch's and Triton's nodes are: a module's function or a library's kernel."""
    model = Model(graphs, launches=1)
    found = []
    with model.graph.calls.current():
        for site in model.graph.sites:
            raw = model.graph.calls.raw_params(site.node)
            try:
                reason, arguments = "", len(original_of(model.graph, site).params.arguments)
            except Refused as error:
                reason, arguments = error.reason, -1
            found.append(
                {
                    "name": site.name[:80],
                    "function": bool(raw.func),
                    "library_kernel": bool(getattr(raw, "kern", None)),
                    "arguments": arguments,
                    "reason": reason,
                    "noted": site.launch is not None,
                }
            )
    return found


def measure() -> dict[str, Any]:
    """Return what swaps inside graphs cost on this machine's GPU; under a minute.

    Host times by `time.perf_counter_ns`. A swap of n nodes is divided by n. Each part is measured
    in turns with what it is compared with.
    """
    graphs = process.process_graphs()
    if not graphs.torch.installed:
        raise SystemExit(f"graphs are not followed: {graphs.reason}")
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "nodes": _nodes(graphs),
        "swap_per_node": [
            _swap_cost(graphs, launches, times=times)
            for launches, times in ((1, 300), (32, 50), (512, 10))
        ],
        "replay": _replay_cost(graphs, times=200),
        "capture": _capture_cost(graphs),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=1) + "\n")
