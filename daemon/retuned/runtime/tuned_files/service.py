"""Service that executes orders for tuned-config files inside the server: write, clear, verify.

A change is engaged when the server's own lookup confirms it: the written rows at the guarded batch
sizes, the earlier picks at all others. Otherwise the service restores the old bytes and clears
again. All of it runs on the control thread; launches only meet an empty cache.

For each kernel that a file configures, the service reports which order is active, and whether it is
still effective.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.epochs import MAX_HISTORY, Fence, Ledger
from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files import servers
from retuned.runtime.tuned_files.apply import (
    SHOWN,
    Prepared,
    carry_out,
    check_picks,
    plan_for,
    prepare,
    put_back,
)
from retuned.runtime.tuned_files.changes import Change
from retuned.runtime.tuned_files.files import read_file
from retuned.runtime.tuned_files.lookup import look, wrong_picks
from retuned.runtime.tuned_files.orders import TunedOrder, parse_tuned_order
from retuned.runtime.tuned_files.servers import Server
from retuned.runtime.tuned_files.strict import digest_of

ENGAGED, NEEDS_RESTART, LOST = STATES = ("engaged", "needs-restart", "lost")
"""The server picks it; it will after a restart; it does not, or the file is another."""
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrderStatus:
    definition: str
    order: str
    artifact: str
    """The daemon's name of the active variant; empty is the original."""
    epoch: int
    change: Change
    """Finds the server's file and lookup again."""
    digest: str | None
    """Of the file that was read after the order; None if it did not exist."""
    outcome: str
    """``engaged``, ``needs-restart`` or ``left-alone``."""
    picks: Mapping[Hashable, Any] = field(default_factory=dict)
    """What must be picked, at the sizes to check."""
    reach: str = "all"
    """What cleared caches do not reach; see the service."""


def report_of(status: FileOrderStatus) -> dict[str, Any]:
    """Return the current status of an order; an error of the check is part of the report."""
    state, reason, detail = _now(status)
    return {
        "definition": status.definition,
        "order": status.order,
        "artifact": status.artifact or None,
        "epoch": status.epoch,
        "state": state,
        "reason": reason,
        "detail": detail[:500],
        "reach": status.reach,
    }


def _now(status: FileOrderStatus) -> tuple[str, str, str]:
    if not status.artifact:  # the original is valid, whatever others change in the file
        return NEEDS_RESTART if status.outcome == NEEDS_RESTART else ENGAGED, "", ""
    try:
        server = servers.find(status.change)
        source = server.source
        same = source == server.target or source is None
        data = None if source is None else read_file(source if same else source.resolve())
        if digest_of(data) != status.digest:
            detail = f"{server.target} is {digest_of(data)} now, the order left {status.digest}"
            return LOST, "changed-by-others", detail
        mismatches: Sequence[str] = ()
        if status.outcome == ENGAGED:
            mismatches = wrong_picks(server, status.picks)
    except Refused as error:
        return LOST, error.reason, error.detail
    if mismatches:
        return LOST, "picks-differ", f"the server picks {list(mismatches[:_SHOWN])}"
    return status.outcome, "", ""


log = logging.getLogger(__name__)

MAX_PREPARED = 16
"""Maximum prepared orders; the oldest is dropped first."""


class TunedFiles:
    """The tuned-config files of this process's server.

    Parameters
    ----------
    graphs
        Returns the state of captured graphs, as `graphs_state`.
    """

    def __init__(
        self,
        *,
        trust: Trust,
        fence: Callable[[], Fence],
        graphs: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._trust = trust
        self._fence = fence
        self._graphs = graphs
        self._on = False
        self.restart()

    def turn_on(self) -> dict[str, str]:
        """Accept orders from now on; return which servers are loaded, for the log."""
        self._on = True
        return servers.found()

    def restart(self) -> None:
        """Forget all orders, at close and after a fork; files do not change."""
        self._lock = threading.Lock()
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()
        self._ledgers: dict[str, Ledger] = {}
        self._outcomes: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._statuses: OrderedDict[str, FileOrderStatus] = OrderedDict()

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {
            "tuned": self.state,
            "tuned-look": self.look,
            "tuned-prepare": self.prepare,
            "tuned-commit": self.commit,
            "tuned-rollback": self.rollback,
        }

    def state(self, _: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            return {
                "on": self._on,
                "servers": servers.found(),
                "prepared": list(self._prepared),
                "outcomes": {order: dict(result) for order, result in self._outcomes.items()},
                "files": [report_of(each) for each in self._statuses.values()],
            }

    def look(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the server picks now; nothing changes.

        Raises
        ------
        Refused
            ``tuned-off``, or as `lookup.look`.
        """
        self._check_on()
        with self._lock:  # a pick between a write and a clear would be inconsistent
            return look(request)

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do everything but the write: signature, file, plan, and a check of the server's picks.

        Raises
        ------
        Refused
            ``tuned-off``, ``file-differs``, ``picks-differ``, ``rows-in-memory-only``, or as the
            called functions.
        """
        order = self._read(request, "swap")
        with self._lock:
            done = self._outcomes.get(order.id)
            if done is not None or order.id in self._prepared:
                return {"already": True}
            prepared = prepare(order)
            check_picks(prepared)
            self._prepared[order.id] = prepared
            while len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        return {
            "already": False,
            "path": str(prepared.server.target),
            "rows": list(prepared.plan.rows),
            "reload": "now" if prepared.server.pick is not None else "at-restart",
        }

    def commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Write, clear, and check what the server picks now.

        Raises
        ------
        Refused
            ``not-prepared``, ``stale-epoch``, or as `replace`. After the write the result is an
            outcome: ``engaged``, ``not-engaged`` or ``needs-restart``.
        """
        order = self._read(request, "swap")
        with self._lock:
            done = self._outcomes.get(order.id)
            if done is not None:
                self._repeated(order)
                return {"already": True, **done}
            prepared = self._prepared.get(order.id)
            if prepared is None or prepared.order != order:
                detail = f"{order.id:.80} was not prepared here, or with other fields"
                raise Refused("not-prepared", detail=detail)
            ledger = self._ledger(prepared.server)
            ledger.check(order.epoch)
            result = {**carry_out(prepared), **self._reach()}
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._remember(order.id, result)
            if result["outcome"] != "not-engaged":
                self._record(order, result, digest=result["digest"], picks=prepared.plan.inside)
        log.info("%s: epoch %d, %s", result["path"], order.epoch, result["outcome"])
        return {"already": False, **result}

    def rollback(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Restore the bytes before a change, clear, and verify that they are picked.

        Raises
        ------
        Refused
            ``stale-epoch``, or as `restore`; a file that others changed since is not changed.
        """
        order = self._read(request, "rollback")
        with self._lock:
            done = self._outcomes.get(order.id)
            if done is not None:
                self._repeated(order)
                return {"already": True, **done}
            server = servers.find(order.change)
            ledger = self._ledger(server)
            ledger.check(order.epoch)
            restored, theirs = put_back(order, server)
            server.clear()
            now = servers.find(order.change)  # the server may read another file now
            outcome, wrong = "left-alone" if theirs else "needs-restart", []
            picks: Mapping[Hashable, Any] = {}
            if now.pick is not None and not theirs:
                found = plan_for(order, now)
                picks = found.was
                wrong = wrong_picks(now, {**found.outside, **picks})
                outcome = "not-engaged" if wrong else "engaged"
            result = {
                "outcome": outcome,
                "engaged": outcome == "engaged",
                "restored": restored,
                "mismatches": wrong[:SHOWN],
                "path": str(server.target),
                **self._reach(),
            }
            self._prepared.pop(order.undoes, None)
            if outcome == "not-engaged":  # repeated until the server picks the earlier row
                return {"already": False, **result}
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._remember(order.id, result)
            self._record(order, result, digest=order.before, picks=picks)
        return {"already": False, **result}

    def _check_on(self) -> None:
        if not self._on:
            detail = "this server accepts no orders for files: RETUNED_TUNED=off, or not turned on"
            raise Refused("tuned-off", detail=detail)

    def _record(
        self,
        order: TunedOrder,
        result: Mapping[str, Any],
        *,
        digest: str | None,
        picks: Mapping[Hashable, Any],
    ) -> None:
        """Store the result of an order for a kernel's file, to verify it again at each report."""
        self._statuses[order.definition] = FileOrderStatus(
            definition=order.definition,
            order=order.id,
            artifact=order.artifact,
            epoch=order.epoch,
            change=order.change,
            digest=digest,
            outcome=str(result["outcome"]),
            picks=picks,
            reach=str(result["reach"]),
        )
        while len(self._statuses) > MAX_HISTORY:
            self._statuses.popitem(last=False)

    def _repeated(self, order: TunedOrder) -> None:
        """Adopt the later epoch of an order that is active already.

        The daemon counts from that epoch.
        """
        status = self._statuses.get(order.definition)
        if status is not None and status.order == order.id and order.epoch > status.epoch:
            ledger = self._ledger(servers.find(order.change))
            ledger.check(order.epoch)
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._statuses[order.definition] = dataclasses.replace(status, epoch=order.epoch)

    def _read(self, request: Mapping[str, Any], kind: str) -> TunedOrder:
        self._check_on()
        order = parse_tuned_order(request, trust=self._trust)
        if order.kind != kind:
            raise Refused("order-invalid", detail=f"'kind' is {order.kind}, not {kind}")
        self._fence().admit(request)
        return order

    def _reach(self) -> dict[str, Any]:
        """Return what a cleared cache does not reach: launches that were captured before."""
        known = self._graphs()
        graphs = {name: known.get(name, 0) for name in ("count", "captured_before", "following")}
        captured = bool(graphs["count"]) or bool(graphs["captured_before"])
        reach = "all" if graphs["following"] else "graphs-unknown"
        return {"reach": "needs-recapture" if captured else reach, "graphs": graphs}

    def _ledger(self, server: Server) -> Ledger:
        return self._ledgers.setdefault(str(server.target), Ledger())

    def _remember(self, order: str, result: dict[str, Any]) -> None:
        self._prepared.pop(order, None)
        self._outcomes[order] = result
        while len(self._outcomes) > MAX_HISTORY:
            self._outcomes.popitem(last=False)
