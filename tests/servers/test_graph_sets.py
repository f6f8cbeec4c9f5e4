"""Second sets of graphs in the second runner's real manager; the device is played."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.servers.sources import running
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.schema import Refused
from retuned.runtime.tunables import graphs
from retuned.runtime.tunables.graphs import WRAPPER, GraphSets
from retuned.runtime.tunables.records import Capture
from retuned.runtime.tunables.state import Registry

pytestmark = pytest.mark.index
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
MODULE = "vllm.v1.worker.gpu.cudagraph_utils"


class CUDAGraphMode(enum.Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


class Graph:
    """A captured graph: it keeps the configuration that was in force at its capture."""

    def __init__(self) -> None:
        self.choice = ""


class Kind(enum.Enum):
    MAMBA2 = "..."
    GDN_ATTN = "..gdn"


class MambaSpec:
    """Named as vLLM's kind of cache for states, with the field that `test_states_*` looks for."""

    def __init__(self, kind: str | Kind) -> None:
        self.mamba_type = kind


def states(kind: str | Kind) -> dict[str, Any]:
    """Return what a runner has with layers of a kind."""
    group = SimpleNamespace(kv_cache_spec=MambaSpec(kind))
    return {"kv_cache_config": SimpleNamespace(kv_cache_groups=[group])}


class Runner:
    """The second runner around its real manager; a launch notes what is in force."""

    def __init__(self, module: ModuleType, sizes: list[int], registry: Registry) -> None:
        self.in_force = "own"
        self.failing = False
        self.device = torch.device("cpu")
        self.req_states = SimpleNamespace(req_id_to_index={})
        self.seen_axes: list[Mapping[str, int]] = []
        self._registry = registry
        manager = object.__new__(module.CudaGraphManager)
        descs = [
            module.BatchExecutionDescriptor(CUDAGraphMode.FULL, num_tokens=each, num_reqs=each)
            for each in sizes
        ]
        vars(manager).update(
            device=self.device,
            graphs={},
            pool=None,
            vllm_config=None,
            use_breakable_cg=False,
            ubatch_runner=None,
            _graphs_captured=False,
            _capture_descs={CUDAGraphMode.FULL: descs},
            _max_full_descs_to_capture=None,
            _capture_mem_samples=None,
        )
        self.cudagraph_manager = manager
        self.capture_model()

    def capture_model(self) -> None:
        def create(desc: Any, warmup: bool) -> Any:
            def forward(mode: CUDAGraphMode) -> None:
                self.seen_axes.append(dict(self._registry.assumed))
                if self.failing and not warmup:
                    raise RuntimeError("out of memory")
                if _capturing:
                    _capturing[-1].choice = self.in_force

            return forward

        self.cudagraph_manager.capture(create)

    @property
    def choices(self) -> dict[int, str]:
        """Return with which configuration each size is replayed."""
        graphs = self.cudagraph_manager.graphs
        return {desc.num_tokens: graph.choice for desc, graph in graphs.items()}


_capturing: list[Graph] = []


@contextmanager
def _captured(graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
    _capturing.append(graph)
    try:
        yield
    finally:
        _capturing.pop()


@pytest.fixture
def _played_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", _captured)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 << 30, 80 << 30))


@contextmanager
def manager(wheel: Wheel) -> Iterator[ModuleType]:
    names: dict[str, Mapping[str, Any]] = {
        "tqdm": {},
        "vllm.config.compilation": {"CUDAGraphMode": CUDAGraphMode},
        "vllm.compilation.counter": {
            "compilation_counter": SimpleNamespace(num_cudagraph_captured=0)
        },
        "vllm.compilation.cudagraph_pool": {
            "capture_pool": lambda pool, _: nullcontext(pool),
            "capture_outside_cumem_pool": nullcontext,
        },
        "vllm.distributed.parallel_state": {
            "graph_capture": lambda device: nullcontext(),
            "is_global_first_rank": lambda: False,
        },
    }
    with running(unpacked(wheel), [WRAPPER, MODULE], names) as modules:
        yield modules[MODULE]


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_named_sizes_are_captured_again_and_exchanged_back(wheel: Wheel) -> None:
    registry = Registry()
    with manager(wheel) as module:
        runner = Runner(module, [8, 4, 2], registry)
        worker, sets = SimpleNamespace(model_runner=runner), GraphSets(registry)
        own = dict(runner.cudagraph_manager.graphs)
        descs = dict(runner.cudagraph_manager._capture_descs)
        assert sets.way(worker) == "on"
        runner.in_force = "table"
        done = sets.capture(worker, [Capture(size=4, axes={"longest": 8192})])
        assert done == [4]
        assert runner.choices == {8: "own", 4: "table", 2: "own"}
        assert runner.seen_axes[-1] == {"longest": 8192}
        assert runner.cudagraph_manager._capture_descs == descs
        assert runner.cudagraph_manager._graphs_captured
        assert sets.restore(worker, [4]) == [4]
        assert runner.cudagraph_manager.graphs == own
        assert not registry.assumed


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_kept_set_comes_back_beside_requests_and_without_a_capture(wheel: Wheel) -> None:
    registry, captures = Registry(), [Capture(size=4, axes={})]
    with manager(wheel) as module:
        runner = Runner(module, [8, 4, 2], registry)
        worker, sets = SimpleNamespace(model_runner=runner), GraphSets(registry)
        runner.in_force = "table"
        sets.capture(worker, captures, tables="one")
        sets.restore(worker, [4])
        captured = len(runner.seen_axes)
        assert sets.again(captures, tables="another") == []
        assert sets.again(captures, tables="one") == [4]
        assert runner.choices == {8: "own", 4: "table", 2: "own"}
        assert len(runner.seen_axes) == captured
        assert sets.restore(worker, [4]) == [4]
        assert runner.choices == {8: "own", 4: "own", 2: "own"}
        sets.forget()
        assert sets.again(captures, tables="one") == []


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_capture_beside_requests_reads_no_block_of_theirs(wheel: Wheel) -> None:
    """A state-space layer would write its state into the blocks of the last step."""
    registry, captures = Registry(), [Capture(size=4, axes={})]
    with manager(wheel) as module:
        runner = Runner(module, [8, 4], registry)
        blocks = torch.arange(1, 9).reshape(4, 2)
        vars(runner)["block_tables"] = SimpleNamespace(input_block_tables=[blocks])
        worker, sets = SimpleNamespace(model_runner=runner), GraphSets(registry)
        runner.req_states.req_id_to_index["one"] = 0
        with pytest.raises(Refused) as refused:
            sets.capture(worker, captures)
        assert refused.value.reason == "server-busy"
        assert blocks.any()
        runner.in_force = "table"
        assert sets.capture(worker, captures, beside=True) == [4]
        assert runner.choices == {8: "own", 4: "table"}
        assert not blocks.any()


@VLLM
@pytest.mark.usefixtures("_played_device")
@pytest.mark.parametrize(
    "changed",
    [
        {"lora_config": object()},
        {"vllm_config": SimpleNamespace(kv_transfer_config=object())},
        states("gdn_attention"),
        states(Kind.GDN_ATTN),
    ],
    ids=["adapters", "another-server", "states", "states-of-an-enumeration"],
)
def test_some_servers_are_captured_only_without_requests(
    wheel: Wheel, changed: dict[str, Any]
) -> None:
    with manager(wheel) as module:
        runner = Runner(module, [4], Registry())
        own = dict(runner.cudagraph_manager.graphs)
        runner.req_states.req_id_to_index["one"] = 0
        vars(runner).update(changed)
        with pytest.raises(Refused) as refused:
            GraphSets(Registry()).capture(
                SimpleNamespace(model_runner=runner), [Capture(size=4, axes={})], beside=True
            )
        assert refused.value.reason == "needs-idle-server"
        assert runner.cudagraph_manager.graphs == own


@VLLM
@pytest.mark.usefixtures("_played_device")
@pytest.mark.parametrize("kind", ["mamba2", Kind.MAMBA2])
def test_states_that_were_measured_are_captured_beside_requests(
    wheel: Wheel, kind: str | Kind
) -> None:
    text = (unpacked(wheel) / "vllm" / "v1" / "kv_cache_interface.py").read_text()
    (fields,) = (each for each in text.split("\nclass ") if each.startswith("MambaSpec("))
    assert "\n    mamba_type: " in fields
    with manager(wheel) as module:
        runner = Runner(module, [4], Registry())
        runner.req_states.req_id_to_index["one"] = 0
        vars(runner).update(states(kind))
        worker = SimpleNamespace(model_runner=runner)
        done = GraphSets(Registry()).capture(worker, [Capture(size=4, axes={})], beside=True)
        assert done == [4]


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_capture_that_fails_leaves_the_servers_graphs(wheel: Wheel) -> None:
    registry = Registry()
    with manager(wheel) as module:
        runner = Runner(module, [8, 4], registry)
        worker, own = SimpleNamespace(model_runner=runner), dict(runner.cudagraph_manager.graphs)
        runner.failing = True
        with pytest.raises(Refused) as refused:
            GraphSets(registry).capture(worker, [Capture(size=4, axes={})])
        assert refused.value.reason == "capture-failed"
        assert runner.cudagraph_manager.graphs == own
        assert runner.cudagraph_manager._graphs_captured


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_second_table_keeps_the_way_back_to_the_servers_graphs(wheel: Wheel) -> None:
    registry = Registry()
    with manager(wheel) as module:
        runner = Runner(module, [8, 4], registry)
        worker, sets = SimpleNamespace(model_runner=runner), GraphSets(registry)
        for each in ("first", "second"):
            runner.in_force = each
            sets.capture(worker, [Capture(size=8, axes={})])
        assert runner.choices == {8: "second", 4: "own"}
        sets.restore(worker, [8])
        assert runner.choices == {8: "own", 4: "own"}


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_size_that_was_never_captured_is_not_captured_now(wheel: Wheel) -> None:
    registry = Registry()
    with manager(wheel) as module:
        runner = Runner(module, [8], registry)
        worker = SimpleNamespace(model_runner=runner)
        assert GraphSets(registry).capture(worker, [Capture(size=16, axes={})]) == []
        assert runner.choices == {8: "own"}


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_a_manager_with_another_name_is_refused(wheel: Wheel) -> None:
    with manager(wheel) as module:
        runner = Runner(module, [8], Registry())
        del runner.cudagraph_manager._capture_descs
        worker = SimpleNamespace(model_runner=runner)
        with pytest.raises(Refused) as refused:
            GraphSets(Registry()).capture(worker, [Capture(size=8, axes={})])
        assert refused.value.reason == "runner-unknown"
        assert runner.choices == {8: "own"}


@VLLM
@pytest.mark.usefixtures("_played_device")
def test_several_ranks_and_a_speculator_are_refused(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks would have to capture together; a speculator captures its own graphs only once."""
    with manager(wheel) as module:
        runner = Runner(module, [4], Registry())
        worker, sets = SimpleNamespace(model_runner=runner), GraphSets(Registry())
        monkeypatch.setattr(graphs, "ranks", lambda: {"world_size": 2})
        assert sets.way(worker) == "several-ranks"
        monkeypatch.setattr(graphs, "ranks", lambda: {"world_size": 1})
        assert sets.way(worker) == "on"
        vars(runner)["speculator"] = object()
        assert sets.way(worker) == "speculative-decoding"
