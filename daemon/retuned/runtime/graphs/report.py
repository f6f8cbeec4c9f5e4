"""Reports on graphs, as JSON data for the control socket."""

from __future__ import annotations

from collections import Counter
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.followers import Graphs
from retuned.runtime.graphs.index import IndexedGraph, Site

MAX_SHOWN = 256
UNNOTED = "not-noted"
"""Reason code of a node that is not a recorded launch of a slot or of a Triton kernel."""


def graphs_state(graphs: Graphs, *, after: int = 0) -> dict[str, Any]:
    """Return which graphs are followed and which are not.

    Parameters
    ----------
    after
        Number of the last graph of the previous page.
    """
    every = sorted(graphs.index, key=lambda graph: graph.number)
    rest = [graph for graph in every if graph.number > after]
    return {
        "following": graphs.torch.installed,
        "reason": graphs.reason,
        "captured_before": graphs.unseen,
        "captured_unfollowed": graphs.captured,
        "left_out": graphs.index.left_out,
        "failures": dict(graphs.failures),
        "recapture": {
            "offers": graphs.recapture.offers,
            "wanted": graphs.recapture.wanted,
            "failures": graphs.recapture.failures,
        },
        "count": len(every),
        "more": len(rest) > MAX_SHOWN,
        "graphs": [_graph(graph) for graph in rest[:MAX_SHOWN]],
    }


def slot_graphs(graphs: Graphs, slot: Slot) -> dict[str, Any]:
    target = graphs.target_of(slot)
    if target is None:
        return {"nodes": 0, "swapped": 0, "unreachable": {}, "launches": 0}
    sites = graphs.index.where(target.is_mine)
    reasons = Counter(site.reason for _, site in sites if site.reason)
    for graph in graphs.index:
        reasons.update(note.problem for note in graph.unplaced if note.target == target.name)
    return {
        "nodes": len(sites),
        "swapped": sum(site.mark is not None for _, site in sites),
        "unreachable": dict(reasons),
        "launches": graph_launches(graphs, slot),
    }


def graph_launches(graphs: Graphs, slot: Slot) -> int:
    order = slot.table.in_force
    if order is None or order.artifact is None:
        return 0
    return graphs.index.launches_of(order.mark)


def _graph(graph: IndexedGraph) -> dict[str, Any]:
    noted = [site for site in graph.sites if site.note is not None or site.launch is not None]
    return {
        "graph": graph.number,
        "nodes": graph.nodes,
        "kernels": len(graph.sites),
        "noted": len(noted),
        "swapped": sum(site.mark is not None for site in noted),
        "unreachable": _reasons(graph, noted),
        "replays": graph.replays,
        "replays_since_change": graph.replays - graph.changed_at,
        "broken": graph.broken,
    }


def _reasons(graph: IndexedGraph, noted: list[Site]) -> dict[str, int]:
    found = Counter(site.reason for site in noted if site.reason)
    found.update(note.problem for note in graph.unplaced)
    if len(graph.sites) > len(noted):
        found[UNNOTED] = len(graph.sites) - len(noted)
    return dict(found)
