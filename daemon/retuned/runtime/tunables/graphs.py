"""Second sets of captured graphs: graphs keep the configuration of their capture.

For the batch sizes that a table names, graphs are captured again with the table in force and kept
beside the old ones. Exchanging a set is an assignment at a safe point; so is the rollback. A size
never lacks its graph: the server would capture on the request path.

Both runners of vLLM are known: V2 keeps full graphs in ``cudagraph_manager.graphs``; V1 keeps
entries in ``CUDAGraphWrapper`` instances, one for each piece of the model.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from retuned.runtime.plugins.ranks import ranks
from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import synchronize
from retuned.runtime.tunables.records import Capture
from retuned.runtime.tunables.state import Registry

log = logging.getLogger(__name__)

WRAPPER = "vllm.compilation.cuda_graph"
MONITOR = "vllm.compilation.monitor"
PARALLEL = "vllm.distributed.parallel_state"
MIN_FREE_BYTES = 1 << 30
"""Free device memory below which nothing is captured."""
MAX_KEPT = 64
"""Second sets of one size that are kept for an exchange without a capture."""


@dataclass(frozen=True, slots=True)
class _Captured:
    holder: Any
    key: Any
    graph: Any


class GraphSets:
    """The server's own graphs, and those captured with tables.

    Parameters
    ----------
    registry
        Receives the axes that a capture does not show.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._own: dict[tuple[int, Any], Any] = {}
        """The server's own graphs that were exchanged, by holder and key."""
        self._kept: OrderedDict[tuple[str, int], list[_Captured]] = OrderedDict()
        """Second sets by the tables that they were captured with and by size, oldest first."""

    def after_fork(self) -> None:
        """Start over in a child; graphs of the parent are kept alive, not freed."""
        self._left = (self._own, self._kept)
        self._own, self._kept = {}, OrderedDict()

    def way(self, worker: Any) -> str:  # noqa: ANN401 - the server's
        """Return ``on`` if graphs can be captured again here, else a reason code."""
        runner = getattr(worker, "model_runner", None)
        if runner is None:
            return "no-worker"
        if int(ranks().get("world_size") or 1) > 1:
            return "several-ranks"  # ranks would have to capture together
        if getattr(runner, "speculator", None) is not None:
            return "speculative-decoding"  # it captures its own graphs, and only once
        if getattr(runner, "cudagraph_manager", None) is not None:
            manager = runner.cudagraph_manager
            known = all(
                hasattr(manager, n) for n in ("graphs", "_capture_descs", "_graphs_captured")
            )
            return "on" if known and hasattr(runner, "capture_model") else "runner-unknown"
        if hasattr(runner, "_capture_cudagraphs") and hasattr(runner, "cudagraph_dispatcher"):
            return "on" if sys.modules.get(WRAPPER) is not None else "no-graphs"
        return "runner-unknown"

    def again(self, captures: Sequence[Capture], *, tables: str) -> list[int]:
        """Put sets in force that were captured with these tables before; return their sizes.

        Runs at a safe point, beside requests too.
        """
        done = []
        for each in captures:
            kept = self._kept.get((tables, each.size))
            for captured in kept or ():
                graphs = _graphs_of(captured.holder)
                self._own.setdefault((id(captured.holder), captured.key), graphs[captured.key])
                graphs[captured.key] = captured.graph
            if kept:
                done.append(each.size)
        return done

    def forget(self) -> None:
        """Free the second sets; none is in force."""
        if self._kept:
            synchronize()  # a replay may still run
            self._kept.clear()

    def capture(
        self,
        worker: Any,  # noqa: ANN401 - the server's
        captures: Sequence[Capture],
        *,
        tables: str = "",
        beside: bool = False,
    ) -> list[int]:
        """Capture the named sizes again, and put the new graphs in force; return the sizes.

        Runs at a safe point.

        Parameters
        ----------
        tables
            Names the tables in force; the sets are kept under that name.
        beside
            Whether requests may be under way.

        Raises
        ------
        Refused
            ``runner-unknown``, ``no-graphs``, ``server-busy``, ``needs-idle-server``,
            ``graph-memory``, or ``capture-failed``; the old graphs stay in force.
        """
        way = self.way(worker)
        if way != "on":
            raise Refused(way, detail="the graphs of this server cannot be captured again")
        if not is_idle(worker):
            if not beside:
                raise Refused("server-busy", detail="requests are under way")
            why = _needs_idle(worker)
            if why:
                raise Refused("needs-idle-server", detail=why)
        with _device_of(worker):  # an idle server is captured on another thread than its own
            return self._captured(worker, captures, tables=tables)

    def _captured(self, worker: Any, captures: Sequence[Capture], *, tables: str) -> list[int]:  # noqa: ANN401
        _check_memory()
        synchronize()
        done = []
        for each in captures:
            self._registry.assumed = dict(each.axes)
            try:
                if self._capture_one(worker, each.size, tables=tables):
                    done.append(each.size)
            except Exception as error:
                log.exception("size %d is not captured again; its old graphs stay", each.size)
                raise Refused("capture-failed", detail=repr(error)[:300]) from error
            finally:
                self._registry.assumed = {}
        synchronize()
        return done

    def restore(self, worker: Any, sizes: Sequence[int]) -> list[int]:  # noqa: ANN401
        """Put the server's own graphs of these sizes back in force; return those restored."""
        found = set()
        for holder in _holders(worker):
            graphs = _graphs_of(holder)
            for key in list(graphs):
                own = self._own.pop((id(holder), key), None)
                if own is not None and key.num_tokens in sizes:
                    graphs[key] = own
                    found.add(key.num_tokens)
                elif own is not None:
                    self._own[id(holder), key] = own
        return sorted(found)

    def _capture_one(self, worker: Any, size: int, *, tables: str) -> bool:  # noqa: ANN401
        runner = worker.model_runner
        holders = _holders(worker)
        before = [dict(_graphs_of(each)) for each in holders]
        for holder, graphs in zip(holders, before, strict=True):
            _put(holder, {key: graph for key, graph in graphs.items() if key.num_tokens != size})
        try:
            manager = getattr(runner, "cudagraph_manager", None)
            capture = _capture_v1 if manager is None else _capture_v2
            capture(worker, size)
            fresh = [dict(_graphs_of(each)) for each in holders]
        except BaseException:
            for holder, graphs in zip(holders, before, strict=True):
                _put(holder, graphs)
            raise
        captured: list[_Captured] = []
        for holder, old, new in zip(holders, before, fresh, strict=True):
            for key, graph in old.items():
                made = new.get(key)
                if key.num_tokens == size and made is not None and _is_whole(made):
                    self._own.setdefault((id(holder), key), graph)
                    old[key] = made
                    captured.append(_Captured(holder, key, made))
            _put(holder, old)
        if captured:
            self._kept[tables, size] = captured
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return bool(captured)


def _device_of(worker: Any) -> AbstractContextManager[object]:  # noqa: ANN401
    torch, device = sys.modules["torch"], getattr(worker.model_runner, "device", None)
    if getattr(device, "type", "") != "cuda":
        return nullcontext()
    on_device: AbstractContextManager[object] = torch.cuda.device(device)
    return on_device


def is_idle(worker: Any) -> bool:  # noqa: ANN401 - the server's
    """Whether no request is under way in a worker."""
    runner = worker.model_runner
    states = getattr(runner, "req_states", None)
    if states is not None:
        return not states.req_id_to_index
    return not getattr(runner, "requests", {})


def _needs_idle(worker: Any) -> str:  # noqa: ANN401
    """Return why this server's graphs cannot be captured beside requests; empty if they can.

    A capture runs the model on dummy inputs. Both runners compute the inputs of each step from the
    state of its requests, which a capture does not write. In a dense model and in one with Mamba2
    layers no key, value or state changed (benchmarks/results/graphs_beside_requests_h200.json).
    """
    runner = worker.model_runner
    if getattr(runner, "lora_config", None) is not None:
        return "a capture loads dummy adapters in the place of the loaded ones"
    config = getattr(runner, "vllm_config", None)
    if getattr(config, "kv_transfer_config", None) is not None:
        return "another server may read or write keys and values"
    groups = getattr(getattr(runner, "kv_cache_config", None), "kv_cache_groups", ())
    specs = [each.kv_cache_spec for each in groups]
    kinds = {_kind(spec) for spec in specs if "Mamba" in type(spec).__name__} - {"mamba2"}
    if kinds:
        return f"captures beside states of {', '.join(sorted(kinds))} layers were not measured"
    return ""


def _kind(spec: Any) -> str:  # noqa: ANN401
    """Return the kind of a state-space layer: text or a member of an enumeration in vLLM."""
    kind = getattr(spec, "mamba_type", "unknown")
    return str(getattr(kind, "name", kind)).lower()


def _check_memory() -> None:
    torch = sys.modules["torch"]
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < MIN_FREE_BYTES:
        detail = f"{free >> 20} MiB of device memory are free, {MIN_FREE_BYTES >> 20} are needed"
        raise Refused("graph-memory", detail=detail)


def _holders(worker: Any) -> list[Any]:  # noqa: ANN401
    """Return the objects that hold captured graphs."""
    manager = getattr(worker.model_runner, "cudagraph_manager", None)
    wrapper = getattr(sys.modules.get(WRAPPER), "CUDAGraphWrapper", None)
    wrappers = list(getattr(wrapper, "_all_instances", ()))
    return [*([manager] if manager is not None else []), *wrappers]


def _name(holder: Any) -> str:  # noqa: ANN401
    return "graphs" if "graphs" in vars(holder) else "concrete_cudagraph_entries"


def _graphs_of(holder: Any) -> dict[Any, Any]:  # noqa: ANN401
    found: dict[Any, Any] = vars(holder)[_name(holder)]
    return found


def _put(holder: Any, graphs: dict[Any, Any]) -> None:  # noqa: ANN401
    setattr(holder, _name(holder), graphs)


def _is_whole(made: Any) -> bool:  # noqa: ANN401 - a graph, or an entry with one
    return getattr(made, "cudagraph", made) is not None


def _capture_v2(worker: Any, size: int) -> None:  # noqa: ANN401
    """Capture one size with V2's own routine, narrowed to it."""
    runner, torch = worker.model_runner, sys.modules["torch"]
    manager = runner.cudagraph_manager
    descriptors = manager._capture_descs
    narrowed = {
        mode: [each for each in listed if each.num_tokens == size]
        for mode, listed in descriptors.items()
    }
    manager._capture_descs = {mode: own for mode, own in narrowed.items() if own}
    captured = manager._graphs_captured
    _zero_block_tables(runner)
    try:
        with torch.inference_mode(), _capturing_enabled():
            runner.capture_model()
    finally:
        manager._capture_descs, manager._graphs_captured = descriptors, captured


def _zero_block_tables(runner: Any) -> None:  # noqa: ANN401
    """Let dummy inputs use block 0, which no request has.

    A capture would read the blocks of the last step here. State-space layers write their states
    there, which belong to a request or a cached prefix. Each step gathers its own blocks.
    """
    for table in getattr(getattr(runner, "block_tables", None), "input_block_tables", ()):
        table.zero_()


def _capture_v1(worker: Any, size: int) -> None:  # noqa: ANN401
    """Capture one size with V1's own routine."""
    runner, torch = worker.model_runner, sys.modules["torch"]
    parallel = sys.modules[PARALLEL]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(_capturing_enabled())
        stack.enter_context(_zeroed_block_tables(runner))
        freeze = getattr(runner, "_freeze_gc", nullcontext)
        stack.enter_context(freeze())
        stack.enter_context(parallel.graph_capture(device=runner.device))
        for mode, descriptors in runner.cudagraph_dispatcher.get_capture_descs():
            own = [each for each in descriptors if each.num_tokens == size]
            if own:
                runner._capture_cudagraphs(
                    batch_descriptors=own, cudagraph_runtime_mode=mode, profiler=nullcontext()
                )


@contextmanager
def _capturing_enabled() -> Iterator[None]:
    """Let vLLM's wrappers capture in this context; they refuse outside of start-up."""
    monitor = sys.modules.get(MONITOR)
    enable = getattr(monitor, "set_cudagraph_capturing_enabled", None)
    if enable is None:
        yield
        return
    before = getattr(monitor, "cudagraph_capturing_enabled", False)
    enable(True)
    try:
        yield
    finally:
        enable(before)


@contextmanager
def _zeroed_block_tables(runner: Any) -> Iterator[None]:  # noqa: ANN401
    """Point dummy runs at block 0: they write keys and values, and other blocks may be cached."""
    saved: list[tuple[Any, Any]] = []
    tables = getattr(getattr(runner, "input_batch", None), "block_table", None)
    for each in getattr(tables, "block_tables", ()):
        for tensor in (each.block_table.gpu, each.block_table.cpu):
            saved.append((tensor, tensor.clone()))
            tensor.zero_()
    begin_s = time.monotonic()
    try:
        yield
    finally:
        for tensor, content in saved:
            tensor.copy_(content)
        log.info("graphs were captured again in %.2f s", time.monotonic() - begin_s)
