"""A sidecar's records: the same store as the daemon's, kept small.

The disk belongs to the pod: a full one gets the server evicted. So old records are removed, and no
events are stored here; the operator and Kubernetes store them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from retuned.node.attribution import ATTRIBUTION
from retuned.node.context import BATCH, DRIFT, WINDOW
from retuned.node.live_proof import LIVE_PROOF, PROVING
from retuned.node.order_context import FAILED, HELD, ORDER, WITHDRAWN
from retuned.node.sentinel import CURRENT, DAY, SENTINEL
from retuned.ports import Event
from retuned.stages.watch.attribution import AttributionOutcome
from retuned.stages.watch.proof import Verdict
from retuned.store.sqlite import SqliteStore

log = logging.getLogger(__name__)

TRIAL = "attribution-proof"
"""Kind of the records of trials, by the order's id and the alarm: proving -> a verdict."""
TOLD = "told"
"""Kind of the marks of windows and drift reports that have gone into the spool."""

_KEPT: Mapping[tuple[str, str], int] = {
    (BATCH, "folded"): 256,
    (WINDOW, "baseline"): 8,
    (WINDOW, "judged"): 32,
    (WINDOW, "skipped"): 8,
    (DRIFT, "new"): 32,
    (DRIFT, "noted"): 32,
    (ORDER, "refused"): 64,
    (ORDER, "superseded"): 64,
    (ORDER, "undone"): 64,
    (FAILED, "final"): 1024,
    (HELD, "final"): 64,
    (WITHDRAWN, "final"): 64,
    **{(LIVE_PROOF, str(each)): 4 for each in (PROVING, *Verdict)},
    **{(DAY, str(each)): 16 for each in (PROVING, *Verdict)},
    (SENTINEL, CURRENT): 64,
    **{(TRIAL, str(each)): 4 for each in (PROVING, *Verdict)},
    **{(ATTRIBUTION, str(each)): 32 for each in AttributionOutcome},
}
"""Most records of each kind and phase, the newest; those that are not named are few by nature."""
_UNJUDGED = 24
"""Fewest windows that wait to be judged; all of them are read together."""


def kept_of(baseline_windows: int) -> Mapping[tuple[str, str], int]:
    """Return how many records of each kind and phase are kept.

    Parameters
    ----------
    baseline_windows
        So many must come together before the first is judged.
    """
    return {**_KEPT, (WINDOW, "new"): max(_UNJUDGED, 2 * baseline_windows)}


class PodStore(SqliteStore):
    """The store of one pod."""

    def record(self, event: Event) -> None:
        """Write a line of the log; nothing is kept of it."""
        log.info("%s %s: %s", event.kind, event.id, event.what)

    def events(self, *, id: str | None = None, limit: int | None = None) -> Sequence[Event]:
        """Return nothing: this store keeps no events."""
        return ()

    def prune(self, kept: Mapping[tuple[str, str], int]) -> int:
        """Remove old records beyond the newest; return how many were removed.

        Raises
        ------
        TemporaryError
            If the database cannot be written now.
        """
        removed = 0
        for (kind, phase), most in kept.items():
            with self._write():
                removed += self._db.execute(
                    "DELETE FROM records WHERE kind = ? AND phase = ? AND seq <= ("
                    "SELECT seq FROM records WHERE kind = ? AND phase = ? "
                    "ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                    (kind, phase, kind, phase, most),
                ).rowcount
        return removed + self._forget_marks()

    def _forget_marks(self) -> int:
        """Remove the marks of sent records that do not exist any more."""
        present = {f"{kind} {id}" for kind in (WINDOW, DRIFT) for id in self.ids(kind)}
        gone = [(TOLD, id) for id in self.ids(TOLD) if id not in present]
        if gone:
            with self._write():
                self._db.executemany("DELETE FROM records WHERE kind = ? AND id = ?", gone)
        return len(gone)
