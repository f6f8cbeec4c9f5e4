"""A graph that PyTorch has captured, indexed: its nodes, and what was noted of their launches."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.index import IndexedGraph, Site, index_graph
from retuned.runtime.graphs.recording import CaptureNotes
from retuned.runtime.graphs.variants import learn_layout
from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)

WHATEVER = (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""What PyTorch's or Triton's objects may raise; the server's launch is not its victim."""


def index_capture(
    graph: Any,  # noqa: ANN401 - a CUDAGraph
    *,
    calls: Callable[[], GraphCalls],
    notes: Callable[[Sequence[int]], CaptureNotes],
) -> IndexedGraph:
    """Look at every node of a graph whose capture has ended.

    Parameters
    ----------
    graph
        PyTorch's; it is not kept alive.
    calls
        Returns the graph calls of its device.
    notes
        Returns what was noted for nodes.

    Raises
    ------
    Refused
        ``graphs-not-kept``, or as `index_graph` and what returns the calls.
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
