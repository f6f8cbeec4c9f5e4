"""Node changes of a target: what its nodes must launch, all of them or none.

A node that cannot run the variant keeps its original, or gets it back. An order that the driver
refused is not tried again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from retuned.runtime.graphs.index import IndexedGraph, Site
from retuned.runtime.graphs.launch_notes import Note
from retuned.runtime.graphs.node_swap import Step, apply, original_of, prepare
from retuned.runtime.graphs.recapture import RECORDED, Recapture
from retuned.runtime.graphs.slot_target import SlotTarget, Target, serving
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    target: str
    changed: int = 0
    swapped: int = 0
    unreachable: Counter[str] = field(default_factory=Counter)
    """Reason -> nodes that keep the original although the variant should run there."""
    took_ns: int = 0
    reason: str = ""
    """Why nothing was changed at all; empty if everything could be."""


class NodeChanges:
    """Changes nodes to what their targets serve.

    Parameters
    ----------
    recapture
        Requested if a node has no original to roll back to.
    """

    def __init__(self, recapture: Recapture) -> None:
        self._recapture = recapture
        self._failed: dict[str, tuple[str, str]] = {}
        """Name of a target -> the mark that the driver refused, and why."""

    def change(
        self, target: Target, sites: Sequence[tuple[IndexedGraph, Site]], outcome: Outcome
    ) -> None:
        """Make a target's nodes launch what it serves, while no graph is captured.

        Raises
        ------
        Refused
            If not even the originals could be restored.
        """
        steps = self._plan(target, sites, outcome)
        try:
            done = apply(steps)
        except Refused as error:
            outcome.reason = error.reason
            log.error("%s: its graphs roll back to the original: %s", target.name, error)
            for step in steps:
                if step.mark is not None:  # this order is not tried again
                    self._failed[target.name] = (step.mark, error.reason)
                    step.site.reason = error.reason
            done = apply(originals(sites))
        outcome.changed, outcome.took_ns = done.nodes, done.took_ns
        outcome.swapped = sum(site.mark is not None for _, site in sites)

    def _plan(
        self, target: Target, sites: Sequence[tuple[IndexedGraph, Site]], outcome: Outcome
    ) -> list[Step]:
        steps = []
        for graph, site in sites:
            owner, mark = graph.alive(), target.admitted(site)
            if owner is None or (site.mark == mark and not site.reason):
                continue
            if site.note is not None and site.note.recorded is not None:
                self._stale(site, mark, outcome)
                continue
            failed = self._failed.get(target.name)
            stays = failed is not None and failed[0] == mark
            site.reason = failed[1] if failed is not None and stays else ""
            with graph.lock, graph.calls.current():
                try:
                    step = self._step(target, graph, site, None if stays else mark)
                except Refused as error:
                    site.reason = error.reason
                    back = site.mark is not None and not graph.broken
                    step = prepare(graph, site, None) if back else None
            if site.reason:
                outcome.unreachable[site.reason] += 1
            if step is not None:
                steps.append(step)
        return steps

    def _stale(self, site: Site, mark: str | None, outcome: Outcome) -> None:
        """Check a node that was captured with a variant: it has no original to roll back to."""
        assert site.note is not None, "only noted launches are recorded with a variant"
        site.reason = "" if site.note.recorded == mark else RECORDED
        if site.reason:
            outcome.unreachable[RECORDED] += 1
            self._recapture.wanted = True

    def _step(
        self, target: Target, graph: IndexedGraph, site: Site, mark: str | None
    ) -> Step | None:
        change = None
        if mark is not None:
            change = target.change(graph, site, original_of(graph, site).params)
        step = prepare(graph, site, change)
        if step is None:  # another order with the same launch
            graph.settle()
            site.mark = None if change is None else change.mark
        return step


def is_stale(target: Target, note: Note) -> bool:
    """Whether a launch of several nodes was captured with a variant that must not run now."""
    if note.recorded is None or note.target != target.name or not isinstance(target, SlotTarget):
        return False
    order = serving(target.slot, note.key)
    return order is None or order.mark != note.recorded


def originals(sites: Sequence[tuple[IndexedGraph, Site]]) -> list[Step]:
    steps = (prepare(graph, site, None) for graph, site in sites if site.now and not graph.broken)
    return [step for step in steps if step is not None]
