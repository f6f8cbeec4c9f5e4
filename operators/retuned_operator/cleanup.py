"""Delete old windows of pods: they are the largest part of a store.

A hundred pods report some thirty thousand of them a day. Hypotheses are made from the newest of a
target, and savings are counted when a window arrives.

For what has ended: report costs and savings, then delete what it left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from retuned.errors import RetunedError
from retuned.ports import Store
from retuned_operator.agent_api import Reports
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.informer import ObjectCache
from retuned_operator.kube.resources import EXPERIMENTS, PODS, TARGETS, Resource
from retuned_operator.savings import Objects, write_reports
from retuned_operator.state import State
from retuned_operator.store.reports import DRIFT, PROFILE

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


log = logging.getLogger(__name__)


def sweep(
    writer: Objects,
    stores: Mapping[Resource, ObjectCache],
    *,
    caches: Caches,
    state: State,
    reports: Reports,
    now: datetime,
) -> None:
    """Report what was spent and saved; delete what pods and experiments left that are gone.

    Parameters
    ----------
    writer
        The API server, as the leader.
    now
        By the operator's clock.

    Raises
    ------
    RetunedError
        If it cannot be deleted now, such as on a disk that does not answer.
    """
    try:
        state.accounts.keep_up()  # before results go
        keys = stores[TARGETS].keys()
        write_reports(
            writer,
            state.accounts.accounts(),
            namespaces={key.partition("/")[0] for key in keys},
        )
    except RetunedError as error:
        log.warning("accounts: %s", error)
    uids = {str(body["metadata"].get("uid", "")) for body in stores[PODS].list()}
    reports.forget_all_but(uids)
    state.tunables.forget_all_but(uids)
    experiments = caches.list(EXPERIMENTS)
    if experiments is not None:
        state.results.keep_only({str(body["metadata"].get("uid", "")) for body in experiments})
    forget_windows(state.store, now=now)
