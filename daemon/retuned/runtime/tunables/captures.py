"""Graphs that hold tables: captures, exchanges, and what is still missing.

Graphs are captured while the server has no requests. Where it is never without any, a table may
allow captures beside requests after some time: each is a pause of the server between two steps, and
together they take no more than the table's share of the time. Sizes in use come first.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import Steps
from retuned.runtime.tunables.graphs import GraphSets
from retuned.runtime.tunables.records import Capture, canonical, digest_of_text
from retuned.runtime.tunables.state import Registry, Tunable

log = logging.getLogger(__name__)

_TRIES = 3
"""Captures of a size that may fail before it is left alone."""
_LATER = frozenset({"server-busy", "no-safe-point", "needs-idle-server"})
"""Refusals of a capture that say nothing about its size."""
CAPTURE_S = 5.0
"""Captures of one order; further sizes follow at idle moments."""


class Captures:
    """The second sets of graphs of all tunables.

    Parameters
    ----------
    registry
        The tunables.
    steps
        Gives safe points.
    """

    def __init__(self, registry: Registry, steps: Steps) -> None:
        self._registry, self._steps = registry, steps
        self.graphs = GraphSets(registry)
        self._held = ""
        """Name of the tables that captured graphs hold."""
        self._due_s = 0.0
        """When the next capture beside requests may begin, seconds of the monotonic clock."""

    def way(self) -> str:
        """Return ``on`` or the reason code why graphs cannot be captured again."""
        return self.graphs.way(self._steps.worker)

    def restore(self, worker: Any, sizes: Sequence[int]) -> None:  # noqa: ANN401 - the server's
        """Bring back the server's own graphs of some sizes, for every tunable."""
        if not sizes or worker is None:
            return
        self.graphs.restore(worker, sizes)
        for each in self._registry:
            kept = [size for size in each.captured_sizes if size not in sizes]
            each.captured_sizes = tuple(kept)

    def exchange(self, worker: Any, change: Callable[[], None] = lambda: None) -> None:  # noqa: ANN401
        """Change which tables act, and put the graphs in force that were captured with those.

        A captured graph holds the choices of all tables at its size. So the server's own graphs
        come back first, then the second sets of the tables that act now; sizes without one are
        captured at an idle moment. Runs at a safe point.
        """
        sizes = {size for each in self._registry for size in each.captured_sizes}
        self.restore(worker, sorted(sizes))
        change()
        self._held = self._in_force()
        if worker is None:
            return
        for each in self._registry:
            table = each.acting
            if table is not None:
                again = self.graphs.again(table.captures, tables=self._held)
                each.captured_sizes = tuple(again)

    def align(self) -> None:
        """Exchange graphs that hold a table which has ended; the daemon may be absent."""
        captured = any(each.captured_sizes for each in self._registry)
        if not captured or self._held == self._in_force():
            return
        try:
            self._steps.at_safe_point(self.exchange)
        except Refused as error:
            log.info("graphs are exchanged later: %s", error)

    def _in_force(self) -> str:
        """Name all tables in force: a captured graph holds the choices of all."""
        tables = {each.id: each.acting.digest for each in self._registry if each.acting is not None}
        return digest_of_text(canonical(tables))

    def complete(self, tunable: Tunable) -> None:
        """Capture one size that graphs do not have yet, if this is a moment for it.

        While steps are recorded nothing is captured: the pause would count against one arm.
        """
        if self._steps.log.recording or not self.missing(tunable):
            return
        table = tunable.table
        assert table is not None, "a size is missing"
        if self._steps.idle():
            self.capture(tunable)
            return
        now_s, after_s = time.monotonic(), table.capture_after_s
        if after_s is not None and now_s >= max(tunable.since_s + after_s, self._due_s):
            self.capture(tunable, beside=True)  # one that failed has stopped the server, too
            ended_s = time.monotonic()
            self._due_s = ended_s + (ended_s - now_s) * (1.0 / table.capture_share - 1.0)

    def capture(self, tunable: Tunable, *, most_s: float = 0.0, beside: bool = False) -> float:
        """Capture the table's sizes again while the server is idle; return the seconds.

        One size at a time, each at a separate safe point: a request that arrives waits for one.

        Parameters
        ----------
        most_s
            No further size begins after this time.
        beside
            Whether requests may be under way, which wait for each size.
        """
        total_s = 0.0
        if self._steps.worker is None:
            return total_s
        for each in self._in_use_first(self.missing(tunable)):
            try:
                work = self._capturing(each, beside=beside)
                done, held_us = self._steps.at_safe_point(work)
            except Refused as error:
                log.info("graphs of %s stay as they are: %s", tunable.id, error)
                if error.reason not in _LATER:
                    tunable.uncaptured[each.size] = tunable.uncaptured.get(each.size, 0) + 1
                break
            if not done:
                tunable.uncaptured[each.size] = _TRIES  # no graph has this size
            tunable.captured_sizes = (*tunable.captured_sizes, *done)
            total_s += held_us / 1e6
            if total_s >= most_s:
                break
        return total_s

    def missing(self, tunable: Tunable) -> list[Capture]:
        """Return the sizes that a table asks for and graphs do not have, as far as it can be."""
        return [
            each
            for each in _captures(tunable)
            if tunable.acting is not None
            and each.size not in tunable.captured_sizes
            and tunable.uncaptured.get(each.size, 0) < _TRIES
        ]

    def _in_use_first(self, missing: Sequence[Capture]) -> list[Capture]:
        """Order sizes by how many of the recent steps they would serve."""
        sizes = sorted(each.size for each in missing)
        tokens = [step["tokens"] for step in self._steps.report()["recent"]]
        served = Counter(next((size for size in sizes if size >= n), 0) for n in tokens)
        return sorted(missing, key=lambda each: -served[each.size])

    def awaited(self, tunable: Tunable) -> list[int]:
        """Return the sizes that will be captured once the moment allows it."""
        return [each.size for each in self.missing(tunable)] if self.way() == "on" else []

    def _capturing(self, wanted: Capture, *, beside: bool) -> Callable[[Any], list[int]]:
        def capture(worker: Any) -> list[int]:  # noqa: ANN401 - the server's
            try:
                tables = self._in_force()
                done = self.graphs.capture(worker, [wanted], tables=tables, beside=beside)
                self._held = self._in_force()
                return done
            except Refused:
                raise
            except Exception as error:  # such as no memory: the old graphs stay in force
                raise Refused("capture-failed", detail=repr(error)[:300]) from error

        return capture

    def bypass(self, tunable: Tunable, *, on: bool, arm: str | None = None) -> float:
        """Let a tunable run the server's choice for a while, or its table again.

        Graphs are exchanged with it; no graph is captured for that. Returns how long the launching
        thread was held, microseconds.

        Parameters
        ----------
        arm
            Label of the steps from then on; None leaves it. A table that a failed check has ended
            does not act again, so the steps get no label.

        Raises
        ------
        Refused
            ``no-safe-point``.
        """

        def switch() -> None:
            tunable.bypassed = on

        def change(worker: Any) -> bool:  # noqa: ANN401 - the server's
            if tunable.bypassed != on:
                self.exchange(worker, switch)
            return on or not tunable.tripped

        return self._steps.in_arm(change, arm=arm)[1]

    def reach(self, tunable: Tunable) -> str:
        """Return whether graphs still launch what was in force before where rules apply."""
        table = tunable.table
        if table is None or not tunable.is_captured(table):
            return "all"
        wanted = {each.size for each in _captures(tunable)}
        return "all" if wanted and wanted <= set(tunable.captured_sizes) else "needs-recapture"


def _captures(tunable: Tunable) -> Sequence[Capture]:
    return tunable.table.captures if tunable.table is not None else ()
