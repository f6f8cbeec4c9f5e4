"""What is over: its costs and savings are told, and what it left is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from retuned.errors import RetunedError
from retuned_operator.agent import Reports
from retuned_operator.controllers.ports import Caches
from retuned_operator.program.forgetting import forget_windows
from retuned_operator.program.reporting import Objects, write_reports
from retuned_operator.program.state import State
from retuned_operator.runtime.resources import EXPERIMENTS, PODS, TARGETS, Resource
from retuned_operator.runtime.store import ObjectCache

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
    """Tell what was spent and saved; forget what pods and experiments left that are gone.

    Parameters
    ----------
    writer
        The API server, as who leads.
    now
        By the operator's clock.

    Raises
    ------
    RetunedError
        If what is over stays for now, such as on a disk that does not answer.
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
    experiments = caches.list(EXPERIMENTS)
    if experiments is not None:
        state.results.keep_only({str(body["metadata"].get("uid", "")) for body in experiments})
    forget_windows(state.store, now=now)
