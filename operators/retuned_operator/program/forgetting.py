"""Windows of pods are forgotten after a while: they are the most of what a store holds.

A hundred pods tell some thirty thousand of them a day. Beliefs are made from the newest of a
target, and what was saved is counted as they come.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from retuned.ports import Store
from retuned_operator.program.kinds import DRIFT, PROFILE

KEPT = timedelta(days=1)
"""How long windows are kept in which nothing asked for anything, and reports that asked nothing."""
_ASKED = ("new", "answered")
"""Phases of drift reports that asked for something."""
_MOST = 2_000
"""Reports whose windows stay, the newest."""


def forget_windows(store: Store, *, now: datetime) -> int:
    """Forget old windows, but those that drift was found in and the ones before; return how many.

    Parameters
    ----------
    store
        The operator's.
    now
        By its clock.

    Raises
    ------
    TemporaryError
        If the database cannot be written now; the rest goes the next time.
    """
    reports = store.page(DRIFT, phases=_ASKED, limit=_MOST)
    keep = {each.id for each in reports} | {str(each.body.get("before", "")) for each in reports}
    store.forget(DRIFT, phase="noted", before=now - KEPT)
    return store.forget(PROFILE, phase="new", before=now - KEPT, keep=keep)
