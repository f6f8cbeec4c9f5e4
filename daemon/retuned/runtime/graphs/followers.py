"""Followers of slots in all graphs of this process: nodes launch what their slots serve.

Only the slot's table decides which variant a node launches. After every change of a table, after
every capture and periodically, the nodes are compared with that table and changed where they
differ. So a rollback, a breaker, a bypass and a later capture all take the same path.

A graph that PyTorch has captured is indexed: its nodes, and the recorded notes of their launches.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.index import GraphIndex, IndexedGraph, Site, index_graph
from retuned.runtime.graphs.launch_notes import CaptureGate, CaptureNotes, Recorder, TritonNotes
from retuned.runtime.graphs.node_changes import NodeChanges, Outcome, is_stale, originals
from retuned.runtime.graphs.node_swap import apply
from retuned.runtime.graphs.recapture import RECORDED, Recapture
from retuned.runtime.graphs.slot_target import SlotTarget, Target
from retuned.runtime.graphs.torch_graphs import TorchGraphs
from retuned.runtime.graphs.variants import learn_layout
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

WHATEVER = (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""Exceptions of PyTorch's or Triton's objects; they must not reach the server's launch."""


def index_capture(
    graph: Any,  # noqa: ANN401 - a CUDAGraph
    *,
    calls: Callable[[], GraphCalls],
    notes: Callable[[Sequence[int]], CaptureNotes],
) -> IndexedGraph:
    """Index every node of a graph whose capture has ended.

    Parameters
    ----------
    graph
        PyTorch's; it is not kept alive.

    Raises
    ------
    Refused
        ``graphs-not-kept``, or as `index_graph` and `calls`.
    """
    try:
        handle = int(graph.raw_cuda_graph())
    except RuntimeError as error:
        raise Refused("graphs-not-kept", detail=str(error)[:300]) from error
    owner = weakref.ref(graph)

    def instance() -> int:
        alive = owner()
        try:
            return int(alive.raw_cuda_graph_exec()) if alive is not None else 0
        except RuntimeError:  # not instantiated yet
            return 0

    found = index_graph(calls(), handle, instance=instance, owner=owner, notes=notes)
    for site in found.sites:
        site.mark = None if site.note is None else site.note.recorded
        _learn(found, site)
    return found


def _learn(graph: IndexedGraph, site: Site) -> None:
    if site.launch is not None:
        try:
            learn_layout(graph.calls, site.launch.compiled)
        except (Refused, *WHATEVER) as error:
            log.debug("%s: its arguments are not known: %r", site.name, error)


_NUMBERS = count(2)
RETRY_S = 1.0
"""Seconds between attempts at nodes that could not be changed yet."""
_LATER = frozenset({"capturing", "not-compiled", "weight-not-packed", "scratch-memory"})

CallsOf = Callable[[int], GraphCalls]


class Graphs:
    """The graphs of this process.

    Parameters
    ----------
    calls_of
        Returns the graph calls of a device; raises `Refused` if there are none.
    capturing
        Returns (device, handle) of the current stream while it is captured; else None.
    """

    def __init__(
        self,
        calls_of: CallsOf,
        *,
        capturing: Callable[[], tuple[int, int] | None],
        device: Callable[[], int],
    ) -> None:
        self.index = GraphIndex()
        self.gate = CaptureGate()
        self.recorder = Recorder(calls_of)
        self.torch = TorchGraphs(self)
        self.recapture = Recapture()
        self.triton = TritonNotes(lambda: self.recorder, capturing=capturing)
        self.unseen = 0
        """Graphs that were replayed although their capture was not observed."""
        self.reason = ""
        """Why graphs are not followed; empty if they are."""
        self._captured: weakref.WeakSet[Any] = weakref.WeakSet()
        self.failures: Counter[str] = Counter()
        self._calls_of = calls_of
        self._capturing = capturing
        self._device = device
        self._targets: dict[str, Target] = {}
        self._later: set[str] = set()
        self._nodes = NodeChanges(self.recapture)
        self._tried_at = float("-inf")
        self._noting = False
        self._lock = threading.RLock()

    # --- targets ----------------------------------------------------------------------------------

    def install(self, torch: Any) -> bool:  # noqa: ANN401 - the module
        """Follow the graphs that PyTorch captures from now on; False if that is not possible."""
        if self.torch.installed:
            return True
        try:
            self.torch.install(torch)
        except Refused as error:
            self.reason = error.reason
            log.info("graphs are not followed: %s", error)
            self.watch(torch)
            return False
        self.reason = ""
        return True

    def watch(self, torch: Any) -> None:  # noqa: ANN401 - the module
        """Only observe captures.

        They are counted, and work that waits for a device waits for them.
        """
        if not self.torch.watched and not self.torch.watch(torch):
            log.debug("captures of graphs are not observed: this PyTorch has no graphs")

    @property
    def captured(self) -> int:
        """Graphs that exist and were captured while none were followed."""
        return len(self._captured)

    @property
    def unfollowed(self) -> int:
        """Graphs whose launches are unknown: no swap reaches them."""
        missed = self.captured + self.unseen + self.index.left_out
        return missed + sum(self.failures.copy().values())

    def add_slot(self, slot: Slot) -> None:
        self.add(
            slot,
            lambda name: SlotTarget(
                slot,
                name=name,
                recorder=lambda: self.recorder,
                capturing=self._capturing,
                recapturing=lambda: self.recapture.under_way,
            ),
        )

    def add(self, slot: Slot, make: Callable[[str], Target]) -> None:
        """Let nodes follow what a slot serves."""
        with self._lock:
            name = slot.spec.name
            if name in self._targets:  # another attachment of this process has one
                name = f"{name}#{next(_NUMBERS)}"
            target = self._targets[name] = make(name)
            if self._noting:
                target.note_captures(True)

        def changed() -> None:
            self.follow(name)

        slot.on_change = changed

    def remove_slot(self, slot: Slot) -> None:
        slot.on_change = None
        with self._lock:
            target = self.target_of(slot)
            if target is None:
                return
            slot.note_captures(None)
            del self._targets[target.name]
            self._later.discard(target.name)
            try:
                with self.gate.changing():
                    apply(originals(self.index.where(target.is_mine)))
            except Refused as error:
                log.error("%s: graphs keep their variants: %s", target.name, error)
            if not self._targets:  # no slot is left to follow
                self._note(False)
                self.torch.uninstall()

    def target_of(self, slot: Slot) -> Target | None:
        return next((target for target in self.targets if target.slot is slot), None)

    @property
    def targets(self) -> list[Target]:
        return list(self._targets.values())

    def close(self) -> None:
        for target in self.targets:
            self.remove_slot(target.slot)
        with self._lock:
            self._note(False)
            self._targets.clear()
            self.torch.uninstall()
            self.index.clear()

    def abandon(self) -> None:
        """Forget everything in a forked child: its parent's graphs do not exist there."""
        self._lock = threading.RLock()
        self.gate, self.index = CaptureGate(), GraphIndex()
        self.recorder = Recorder(self._calls_of)
        self._captured = weakref.WeakSet()
        self.unseen = 0
        self.failures.clear()
        self._noting = False
        self._later.clear()

    # --- notifications of PyTorch's graphs --------------------------------------------------------

    def began(self, graph: Any) -> None:  # noqa: ANN401 - a CUDAGraph
        if not self.torch.installed:
            self.gate.begin(graph)
            return
        try:
            self._calls_of(self._device())  # loads the driver now, not inside the capture
        except Refused as error:
            log.info("a captured graph will not be followed: %s", error)
        self.gate.begin(graph)
        self._note(True)

    def ended(self, graph: Any, *, ok: bool) -> IndexedGraph | None:  # noqa: ANN401 - a CUDAGraph
        self.gate.end(graph)
        if not ok:
            if not self.gate.captures:
                self.recorder.clear()
            return None
        if not self.torch.installed:
            self._captured.add(graph)
            return None
        try:
            found = index_capture(
                graph, calls=lambda: self._calls_of(self._device()), notes=self.recorder.take
            )
        except Refused as error:
            self.failures[error.reason] += 1
            log.warning("a captured graph is not followed: %s", error)
            return None
        if not self.index.add(found):
            return None
        weakref.finalize(graph, self.index.remove, found.number)
        for target in self.targets:
            if any(target.is_mine(site) for site in found.sites):
                self.follow(target.name)
        return found

    def gone(self, graph: Any) -> None:  # noqa: ANN401 - a CUDAGraph
        self.gate.end(graph)
        self._captured.discard(graph)
        for found in self.index:
            if found.owner() is graph:
                self.index.remove(found.number)

    def unknown(self) -> None:
        """Count a graph that was captured before its capture could be observed."""
        self.unseen += 1

    # --- changing nodes ---------------------------------------------------------------------------

    def follow(self, name: str) -> Outcome:
        """Make a target's nodes launch what it serves; never raises."""
        try:
            with self._lock:
                return self._follow(name)
        except Refused as error:
            self._later.add(name)
            if error.reason != "capturing":
                log.warning("%s: its graphs are not changed: %s", name, error)
            return Outcome(name, reason=error.reason)
        except WHATEVER as error:
            log.exception("%s: its graphs are not changed", name)
            return Outcome(name, reason=f"runtime-error: {type(error).__name__}")

    def housekeeping(self) -> None:
        """Retry postponed changes; stop recording when no capture is running."""
        if self._noting and not self.gate.captures:
            self._note(False)
        if self.recapture.wanted and self.recapture.offers and not self.gate.captures:
            self._recapture()
        if self._later and time.monotonic() - self._tried_at >= RETRY_S:
            self._tried_at = time.monotonic()
            waiting, self._later = self._later, set()
            for name in waiting:
                self.follow(name)

    def _recapture(self) -> None:
        """Make the server capture graphs again that contain an inactive variant."""
        try:
            self.recapture.run()
        except Refused as error:
            log.error("graphs keep an inactive variant: %s", error)
            self.recapture.wanted = False  # requested again by the next order, or by people

    def _follow(self, name: str) -> Outcome:
        target, outcome = self._targets.get(name), Outcome(name)
        sites = [] if target is None else self.index.where(target.is_mine)
        if target is None:
            return outcome
        if any(is_stale(target, note) for graph in self.index for note in graph.unplaced):
            outcome.unreachable[RECORDED] += 1
            self.recapture.wanted = True
        if not sites:
            return outcome
        with self.gate.changing():
            self._nodes.change(target, sites, outcome)
        if not _LATER.isdisjoint(outcome.unreachable):
            self._later.add(name)
        return outcome

    def _note(self, on: bool) -> None:
        with self._lock:
            if self._noting != on:
                self._noting = on
                self.triton.on() if on else self.triton.off()
                for target in self._targets.values():
                    target.note_captures(on)
