"""Node swap: changes nodes of captured graphs, all requested ones or none.

Everything is read, compared and laid out before the first node is changed. Then each graph is
locked against its own replays and changed. So a replay launches the graph before or after the
change and never a mixture; replays that are running on the device finish with what they started
with. The instance is changed first, since the driver checks more there, and then its source graph,
so that a later instantiation launches the same.

No driver can read a node of an instance. The source graph is read back, after the instance has
accepted the same bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from retuned.runtime.graphs.index import IndexedGraph, Site
from retuned.runtime.graphs.structures import KernelParams, Packed, Size, pack
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

_MAX_X = 2**31 - 1
_MAX_YZ = 65_535
_MAX_THREADS = 1024
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    mark: str
    function: int
    """Handle of a loaded kernel whose shared memory is already allowed."""
    grid: Size
    block: Size
    shared_bytes: int
    arguments: tuple[bytes, ...] | None = None
    """Values; None uses the node's, which needs the same layout."""
    divisible: tuple[tuple[int, int], ...] = ()
    """(argument, divisor): the compiled code assumes that the argument is a multiple of it."""
    keeps: tuple[Any, ...] = ()
    """Modules and memory that must live as long as a node uses them."""


@dataclass(frozen=True, slots=True)
class Step:
    graph: IndexedGraph
    site: Site
    new: Packed
    old: Packed
    mark: str | None
    """Artifact of `new`; None is the original."""
    keeps: tuple[Any, ...]
    before: tuple[Packed | None, str | None, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    nodes: int
    graphs: int
    took_ns: int


def prepare(graph: IndexedGraph, site: Site, change: Change | None) -> Step | None:
    """Check whether a node can be changed, and lay out everything; nothing is changed yet.

    Parameters
    ----------
    change
        Its new launch; None is the original.

    Returns
    -------
    Step | None
        None if the node launches that already.

    Raises
    ------
    Refused
        ``graph-broken``, ``layout-unknown``, ``layout-differs``, ``argument-unaligned``,
        ``grid-invalid``, ``launch-attribute``, ``programmatic-edge``, or as `DriverFailed`.
    """
    if site.original is None and change is None:
        return None
    original = original_of(graph, site)
    old = site.now or original
    new = original if change is None else _packed(graph, original, change)
    if new.params == old.params:
        return None
    mark, keeps = (None, ()) if change is None else (change.mark, change.keeps)
    return Step(graph, site, new, old, mark, keeps, (site.now, site.mark, site.keeps))


def original_of(graph: IndexedGraph, site: Site) -> Packed:
    """Return what a node launched at its capture; read once, before the first change.

    Raises
    ------
    Refused
        ``graph-broken``, ``layout-unknown``, ``launch-attribute``, ``programmatic-edge``, or as
        `DriverFailed`.
    """
    if graph.broken:
        raise Refused("graph-broken", detail=f"it could not be restored: {graph.broken}")
    if site.original is None:
        _check_replaceable(graph, site)
        calls, node = graph.calls, site.node
        layout = calls.layout_at(node)
        site.original = pack(calls.params(node, layout), layout, vendor=calls.vendor)
    return site.original


def apply(steps: Sequence[Step]) -> Applied:
    """Change every node, or none.

    Raises
    ------
    Refused
        ``not-applied``, or as `DriverFailed`; every node is unchanged, except in graphs that are
        `IndexedGraph.broken` now.
    """
    start_ns = time.perf_counter_ns()
    ordered = sorted(steps, key=lambda step: step.graph.number)
    groups = [
        (graph, list(group)) for graph, group in groupby(ordered, key=lambda step: step.graph)
    ]
    done: list[tuple[IndexedGraph, list[Step]]] = []
    try:
        for graph, group in groups:
            owner = graph.alive()
            if owner is None:
                continue  # the server has dropped it
            with graph.lock, graph.calls.current():
                if not graph.gone:
                    _change(graph, group)
                    done.append((graph, group))
    except Refused:
        for graph, group in reversed(done):
            _undo(graph, group)
        raise
    took_ns = time.perf_counter_ns() - start_ns
    nodes = sum(len(group) for _, group in done)
    return Applied(nodes=nodes, graphs=len(done), took_ns=took_ns)


def _check_replaceable(graph: IndexedGraph, site: Site) -> None:
    """Refuse a launch that depends on its neighbours or on device state by an attribute."""
    attribute = graph.calls.attribute_of(site.node)
    if attribute:
        detail = f"the launch is {attribute}, which a changed node cannot be"
        raise Refused("launch-attribute", detail=detail)
    graph.calls.check_edges(site.node)


def _packed(graph: IndexedGraph, original: Packed, change: Change) -> Packed:
    calls = graph.calls
    layout = calls.layout(change.function)
    if change.arguments is None:
        if original.layout != layout:
            theirs = _shown(original.layout)
            detail = f"its arguments are at {theirs}, the variant's at {_shown(layout)}"
            raise Refused("layout-differs", detail=detail)
        arguments = original.params.arguments
    else:
        arguments = change.arguments
        sizes = [size for _, size in layout]
        if [len(value) for value in arguments] != sizes:
            given = [len(value) for value in arguments]
            raise Refused("layout-differs", detail=f"{given} bytes given, {sizes} expected")
    _check_values(arguments, change)
    _check_geometry(change)
    made = replace(
        original.params,
        function=change.function,
        kernel=0,
        context=0,
        grid=change.grid,
        block=change.block,
        shared_bytes=change.shared_bytes,
        arguments=arguments,
    )
    return pack(made, layout, vendor=calls.vendor)


def _check_values(arguments: Sequence[bytes], change: Change) -> None:
    for place, number in change.divisible:
        if place >= len(arguments):
            raise Refused("layout-differs", detail=f"the kernel has no argument {place}")
        value = int.from_bytes(arguments[place], "little")
        if value % number:
            detail = f"argument {place} is {value:#x}, not a multiple of {number}"
            raise Refused("argument-unaligned", detail=detail)


def _check_geometry(change: Change) -> None:
    (x, y, z), (bx, by, bz) = change.grid, change.block
    fits = 1 <= x <= _MAX_X and 1 <= y <= _MAX_YZ and 1 <= z <= _MAX_YZ
    if not fits or min(bx, by, bz) < 1 or bz > _MAX_DEPTH or bx * by * bz > _MAX_THREADS:
        raise Refused("grid-invalid", detail=f"{change.grid} blocks of {change.block} threads")


def _change(graph: IndexedGraph, group: Sequence[Step]) -> None:
    """Change a locked graph's nodes; restores them if one of them cannot be changed."""
    instance = graph.instance()
    touched = 0
    try:
        for step in group:
            if instance:
                graph.calls.set_exec(instance, step.site.node, step.new)
            touched += 1  # a node that the instance has refused is unchanged
            graph.calls.set_node(step.site.node, step.new)
            _read_back(graph, step.site.node, step.new)
    except Refused:
        for step in group[:touched]:
            _restore(graph, step, instance=instance)
        raise
    graph.settle()
    for step in group:
        site = step.site
        site.now, site.mark = step.new, step.mark
        site.retired, site.keeps = site.keeps, step.keeps  # a running replay still uses them


def _undo(graph: IndexedGraph, group: Sequence[Step]) -> None:
    owner = graph.alive()
    try:
        with graph.lock, graph.calls.current():
            if owner is None or graph.gone:
                return
            instance = graph.instance()
            graph.settle()
            for step in group:
                _restore(graph, step, instance=instance)
    except Refused as error:
        _broken(graph, error)


def _read_back(graph: IndexedGraph, node: int, packed: Packed) -> None:
    found, wanted = graph.calls.params(node, packed.layout), packed.params
    if _essence(found, wanted) != _essence(wanted, wanted):
        raise Refused("not-applied", detail=f"the node launches {_brief(found)} after the change")


def _restore(graph: IndexedGraph, step: Step, *, instance: int) -> None:
    """Restore a node; if that fails, its graph is broken and no longer changed."""
    try:
        if instance:
            graph.calls.set_exec(instance, step.site.node, step.old)
        graph.calls.set_node(step.site.node, step.old)
    except Refused as error:
        step.site.keeps = (*step.site.keeps, *step.keeps)  # its current launch is unknown
        _broken(graph, error)
        return
    step.site.now, step.site.mark, step.site.keeps = step.before


def _essence(found: KernelParams, wanted: KernelParams) -> tuple[Any, ...]:
    """Return what must be equal; a library's kernel may be read back as one of a module."""
    whose = found.function if wanted.function else found.kernel or wanted.kernel
    return whose, found.grid, found.block, found.shared_bytes, found.arguments


def _broken(graph: IndexedGraph, error: Refused) -> None:
    graph.broken = error.reason
    log.error("graph %d could not be restored, capture it again: %s", graph.number, error)


def _shown(layout: Sequence[tuple[int, int]]) -> str:
    text = ", ".join(f"{offset}+{size}" for offset, size in layout[:12])
    return f"[{text}{', ...' if len(layout) > 12 else ''}]"


def _brief(params: KernelParams) -> str:
    return f"{params.grid} blocks of {params.block} threads of {params.function:#x}"
