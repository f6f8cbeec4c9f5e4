"""Index of the graphs of this process, as captured and as changed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.launch_notes import CaptureNotes, Note
from retuned.runtime.graphs.structures import Packed, Size

MAX_GRAPHS = 8192
"""Graphs followed; further ones are counted and not changed.

Servers that capture their model in pieces have thousands.
"""
MAX_SITES = 400_000
"""Kernel nodes stored over all graphs, some hundred bytes each."""

MAX_MARKS = 1024
MAX_BANKED = 64

_NUMBERS = count(1)


@dataclass(slots=True, kw_only=True, eq=False)
class Site:
    place: int
    """Position among the graph's nodes, in the driver's order."""
    node: int
    name: str
    """Name of the compiled kernel; untrusted text."""
    function: int
    """Handle of the captured kernel: of a module's function or of a library's kernel."""
    grid: Size
    block: Size
    shared_bytes: int
    note: Note | None = None
    """The slot's launch that this node is, if known."""
    launch: Any = None
    """The Triton kernel's launch that this node is, a `TritonLaunch`, if known."""
    original: Packed | None = None
    """The launch of the capture, for rollbacks; read before the first change."""
    now: Packed | None = None
    """The current launch; None until the first change."""
    mark: str | None = None
    keeps: tuple[Any, ...] = ()
    """Modules and memory that must live as long as the node uses them."""
    retired: tuple[Any, ...] = ()
    """The previous `keeps`: a running replay may still use it."""
    reason: str = ""
    """Why the last order could not change the node; empty if it did."""


@dataclass(slots=True, kw_only=True, eq=False)
class IndexedGraph:
    calls: GraphCalls
    graph: int
    instance: Callable[[], int]
    """Returns the handle of the current instance; 0 if it is not instantiated."""
    sites: tuple[Site, ...]
    others: int
    owner: Callable[[], Any]
    """Returns the server's object while it exists, which keeps it alive for the caller.

    Else None.
    """
    unplaced: tuple[Note, ...] = ()
    """Launches of its capture without a single corresponding node."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    lock: Any = field(default_factory=threading.RLock)
    """Held while the graph is launched, instantiated or changed: drivers require one at a time."""
    replays: int = 0
    changed_at: int = 0
    """Value of `replays` at the last change."""
    banked: dict[str, int] = field(default_factory=dict)
    gone: bool = False
    """Whether the server has reset it: its handles are invalid."""
    broken: str = ""
    """Why it can no longer be changed: it could not be restored; empty if it can."""

    @property
    def nodes(self) -> int:
        return len(self.sites) + self.others

    def alive(self) -> Any:  # noqa: ANN401 - the server's object
        """Return the server's object; None if its handles are invalid."""
        return None if self.gone else self.owner()

    def settle(self) -> None:
        since = self.replays - self.changed_at
        self.changed_at = self.replays
        if not since:
            return
        for site in self.sites:
            if site.mark is not None:
                self.banked[site.mark] = self.banked.pop(site.mark, 0) + since
        while len(self.banked) > MAX_BANKED:
            del self.banked[next(iter(self.banked))]

    def launches_of(self, mark: str) -> int:
        live = sum(site.mark == mark for site in self.sites)
        return self.banked.get(mark, 0) + live * (self.replays - self.changed_at)


class GraphIndex:
    def __init__(self) -> None:
        self._graphs: dict[int, IndexedGraph] = {}
        self._sites = 0
        self._dead: deque[int] = deque()
        self._gone: dict[str, int] = {}
        self._lock = threading.Lock()
        self.left_out = 0

    def __iter__(self) -> Iterator[IndexedGraph]:
        with self._lock:
            self._bury()
            return iter(list(self._graphs.values()))

    def __len__(self) -> int:
        with self._lock:
            self._bury()
            return len(self._graphs)

    def add(self, graph: IndexedGraph) -> bool:
        with self._lock:
            self._bury()
            full = len(self._graphs) >= MAX_GRAPHS
            if full or self._sites + len(graph.sites) > MAX_SITES:
                self.left_out += 1
                return False
            self._graphs[graph.number] = graph
            self._sites += len(graph.sites)
            return True

    def remove(self, number: int) -> None:
        """Forget a graph that was destroyed.

        May be called anywhere, also by the garbage collector.
        """
        self._dead.append(number)

    def _bury(self) -> None:
        while self._dead:
            found = self._graphs.pop(self._dead.popleft(), None)
            if found is not None:
                self._sites -= len(found.sites)
                found.settle()
                for mark, launches in found.banked.items():
                    self._gone[mark] = self._gone.pop(mark, 0) + launches
        while len(self._gone) > MAX_MARKS:
            del self._gone[next(iter(self._gone))]

    def clear(self) -> None:
        with self._lock:
            self._graphs.clear()
            self._gone.clear()
            self._sites = 0
            self.left_out = 0

    def where(self, is_mine: Callable[[Site], bool]) -> list[tuple[IndexedGraph, Site]]:
        return [(graph, site) for graph in self for site in graph.sites if is_mine(site)]

    def launches_of(self, mark: str) -> int:
        live = sum(graph.launches_of(mark) for graph in self)
        return live + self._gone.get(mark, 0)


def index_graph(
    calls: GraphCalls,
    graph: int,
    *,
    instance: Callable[[], int],
    owner: Callable[[], Any],
    notes: Callable[[Sequence[int]], CaptureNotes],
) -> IndexedGraph:
    """Index every node of a captured graph.

    Parameters
    ----------
    instance
        Returns the handle of the instance that is replayed.
    owner
        Returns the server's object while it exists; else None.

    Raises
    ------
    Refused
        ``graph-too-large``, or as `DriverFailed`.
    """
    nodes = calls.nodes(graph)
    taken = notes(nodes)
    names: dict[int, str] = {}
    sites = []
    for place, node in enumerate(nodes):
        if calls.is_kernel(node):
            site = _site(calls, node, place=place, names=names)
            site.note, site.launch = taken.notes.get(node), taken.launches.get(node)
            sites.append(site)
    return IndexedGraph(
        calls=calls,
        graph=graph,
        instance=instance,
        sites=tuple(sites),
        others=len(nodes) - len(sites),
        owner=owner,
        unplaced=taken.unplaced,
    )


def _site(calls: GraphCalls, node: int, *, place: int, names: dict[int, str]) -> Site:
    raw = calls.raw_params(node)
    if calls.vendor == "nvidia":
        function, kernel = raw.func or 0, raw.kern or 0
        grid = (raw.gridDimX, raw.gridDimY, raw.gridDimZ)
        block = (raw.blockDimX, raw.blockDimY, raw.blockDimZ)
    else:
        function, kernel = raw.func or 0, 0
        grid = (raw.gridDim.x, raw.gridDim.y, raw.gridDim.z)
        block = (raw.blockDim.x, raw.blockDim.y, raw.blockDim.z)
    whose = function or kernel
    if whose not in names:
        names[whose] = calls.name(function, kernel)
    return Site(
        place=place,
        node=node,
        name=names[whose],
        function=whose,
        grid=grid,
        block=block,
        shared_bytes=raw.sharedMemBytes,
    )
