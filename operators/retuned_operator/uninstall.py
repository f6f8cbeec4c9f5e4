"""Before an uninstall: roll every swap back while the operator and the sidecars still run.

Helm runs it as a hook before it deletes the release. It requests the rollbacks in the proposals
(``spec.abort``); the operator orders them, and the sidecars execute them. Later nothing would: a
server keeps its promoted swaps while no operator answers, so that an outage changes no server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from retuned.api.proposal import ProposalPhase
from retuned.clock import SystemClock
from retuned.errors import TemporaryError
from retuned.ports import Clock
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import PROPOSALS, TARGETS, Obj, Resource
from retuned_operator.schema import SwapProposal, TuningTarget, read

log = logging.getLogger(__name__)

REASON = "uninstall"
PATIENCE = timedelta(minutes=4)
"""Helm waits five minutes for a hook."""
_LOOK_S = 2.0


def in_force(
    proposals: Iterable[SwapProposal], targets: Iterable[TuningTarget]
) -> list[SwapProposal]:
    """Return the proposals whose variant some server may run."""
    active = {
        (target.metadata.namespace, entry.proposal)
        for target in targets
        for entry in target.status.active_kernels
    }
    return [
        each
        for each in proposals
        if each.status.phase.is_under_way
        or each.status.phase.is_going_back
        or (
            each.status.phase is ProposalPhase.PROMOTED
            and (each.metadata.namespace, each.metadata.name) in active
        )
    ]


def rollback_all(
    api: Api,
    *,
    namespaces: Sequence[str] = (),
    clock: Clock | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Roll every swap back; return how many were in force once no server has one any more.

    Parameters
    ----------
    api
        With the rights of the operator.
    namespaces
        Those with targets; empty means all.
    clock, wait
        For tests.

    Raises
    ------
    TemporaryError
        If a swap is still in force after `PATIENCE`; its message names them.
    ApiError
        If the API server does not answer. Running it again goes on.
    """
    clock = clock or SystemClock()
    deadline, requested = clock.now() + PATIENCE, set[str]()
    while True:
        proposals = [read(SwapProposal, each) for each in _all(api, PROPOSALS, namespaces)]
        targets = [read(TuningTarget, each) for each in _all(api, TARGETS, namespaces)]
        left = in_force(proposals, targets)
        if not left:
            return len(requested)
        for each in left:
            _request(api, each, requested)
        if clock.now() >= deadline:
            raise TemporaryError(_late(left), delay_s=60.0)
        wait(_LOOK_S)


def _all(api: Api, kind: Resource, namespaces: Sequence[str]) -> list[Obj]:
    try:
        lists = [api.list(kind, namespace=namespace) for namespace in namespaces or ("",)]
    except NotFound:  # the cluster does not know the kind any more
        return []
    return [body for each in lists for body in each.items]


def _request(api: Api, proposal: SwapProposal, requested: set[str]) -> None:
    about = proposal.metadata
    if about.uid in requested:
        return
    requested.add(about.uid)
    if not proposal.spec.abort.requested:
        change = {"spec": {"abort": {"requested": True, "reason": REASON}}}
        api.patch(PROPOSALS, about.name, change=change, namespace=about.namespace)
    log.info("%s/%s (%s) rolls back", about.namespace, about.name, proposal.status.phase)


def _late(left: Sequence[SwapProposal]) -> str:
    named = [f"{e.metadata.namespace}/{e.metadata.name} ({e.status.phase})" for e in left[:10]]
    listed = ", ".join(named) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
    return (
        f"after {PATIENCE.total_seconds():.0f} s swaps are still in force: {listed}. Nothing was "
        "uninstalled. `kubectl retuned status` says what each pod waits for. Repeat the uninstall, "
        "or add --no-hooks: then these servers keep the swaps until they restart"
    )
