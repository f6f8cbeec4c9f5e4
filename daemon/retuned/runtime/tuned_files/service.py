"""Orders on tuned-config files, carried out inside the server: write, clear, and ask it itself.

A change counts as engaged when the server's own lookup says so: what was written at the guarded
batch sizes, what it said before at all others. Anything else puts the old bytes back and clears
again. All of it is on the control thread; launches only see that a cache was emptied.

How a kernel that a file configures stands: which order is in force, and whether it still holds.
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
    """What the last order for a kernel left behind in this process."""

    definition: str
    """The kernel, as the daemon calls it."""
    order: str
    """Id of the order."""
    artifact: str
    """What the daemon calls what is in force; empty is the original."""
    epoch: int
    """Of the order."""
    change: Change
    """What finds the server's file and lookup again."""
    digest: str | None
    """Of the file that was read after the order; None is no file."""
    outcome: str
    """``engaged``, ``needs-restart`` or ``left-alone``."""
    picks: Mapping[Hashable, Any] = field(default_factory=dict)
    """What has to be picked, at the sizes worth asking about."""
    reach: str = "all"
    """What emptied caches do not reach; see the service."""


def report_of(standing: FileOrderStatus) -> dict[str, Any]:
    """Return how an order stands now; whatever goes wrong with asking is an answer, too."""
    state, reason, detail = _now(standing)
    return {
        "definition": standing.definition,
        "order": standing.order,
        "artifact": standing.artifact or None,
        "epoch": standing.epoch,
        "state": state,
        "reason": reason,
        "detail": detail[:500],
        "reach": standing.reach,
    }


def _now(standing: FileOrderStatus) -> tuple[str, str, str]:
    if not standing.artifact:  # the original holds by itself, whatever others make of the file
        return NEEDS_RESTART if standing.outcome == NEEDS_RESTART else ENGAGED, "", ""
    try:
        server = servers.find(standing.change)
        source = server.source
        same = source == server.target or source is None
        data = None if source is None else read_file(source if same else source.resolve())
        if digest_of(data) != standing.digest:
            detail = f"{server.target} is {digest_of(data)} now, the order left {standing.digest}"
            return LOST, "changed-by-others", detail
        mismatches: Sequence[str] = ()
        if standing.outcome == ENGAGED:
            mismatches = wrong_picks(server, standing.picks)
    except Refused as error:
        return LOST, error.reason, error.detail
    if mismatches:
        return LOST, "picks-differ", f"the server picks {list(mismatches[:_SHOWN])}"
    return standing.outcome, "", ""


log = logging.getLogger(__name__)

MAX_PREPARED = 16
"""Orders that may stand prepared; the oldest goes first."""


class TunedFiles:
    """The tuned-config files of this process's server.

    Parameters
    ----------
    trust
        Whose signature a change needs.
    fence
        Returns what refuses former daemons.
    graphs
        Returns what is known about captured graphs, as `graphs_state`.
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
        """Take orders from now on; return which servers are loaded, for the log."""
        self._on = True
        return servers.found()

    def restart(self) -> None:
        """Forget all orders, at close and after a fork; files stay as they are."""
        self._lock = threading.Lock()
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()
        self._ledgers: dict[str, Ledger] = {}
        self._outcomes: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._standing: OrderedDict[str, FileOrderStatus] = OrderedDict()

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Return what the control socket can ask for."""
        return {
            "tuned": self.state,
            "tuned-look": self.look,
            "tuned-prepare": self.prepare,
            "tuned-commit": self.commit,
            "tuned-rollback": self.rollback,
        }

    def state(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Say what is loaded, and what became of the orders of this process."""
        with self._lock:
            return {
                "on": self._on,
                "servers": servers.found(),
                "prepared": list(self._prepared),
                "outcomes": {order: dict(said) for order, said in self._outcomes.items()},
                "files": [report_of(each) for each in self._standing.values()],
            }

    def look(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Say what the server picks today; nothing changes.

        Raises
        ------
        Refused
            ``tuned-off``, or as `looking.look`.
        """
        self._check_on()
        with self._lock:  # a pick in between a write and a clear would be neither
            return look(request)

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do all but write: signature, file, plan, and whether the server picks as we think.

        Raises
        ------
        Refused
            ``tuned-off``, ``file-differs``, ``picks-differ``, ``rows-in-memory-only``, or as what
            it calls.
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
        """Write, clear, and have the server say what it picks now.

        Raises
        ------
        Refused
            ``not-prepared``, ``stale-epoch``, or as `replace`. What comes after the write is an
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
                detail = f"{order.id:.80} was not prepared here, or said something else"
                raise Refused("not-prepared", detail=detail)
            ledger = self._ledger(prepared.server)
            ledger.check(order.epoch)
            said = {**carry_out(prepared), **self._reach()}
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._remember(order.id, said)
            if said["outcome"] != "not-engaged":
                self._stands(order, said, digest=said["digest"], picks=prepared.plan.inside)
        log.info("%s: epoch %d, %s", said["path"], order.epoch, said["outcome"])
        return {"already": False, **said}

    def rollback(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the bytes before a change back, clear, and see that they are what is picked.

        Raises
        ------
        Refused
            ``stale-epoch``, or as `restore`; a file that others changed since is left alone.
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
            now = servers.find(order.change)  # what is read may be another file again
            outcome, wrong = "left-alone" if theirs else "needs-restart", []
            picks: Mapping[Hashable, Any] = {}
            if now.pick is not None and not theirs:
                found = plan_for(order, now)
                picks = found.was
                wrong = wrong_picks(now, {**found.outside, **picks})
                outcome = "not-engaged" if wrong else "engaged"
            said = {
                "outcome": outcome,
                "engaged": outcome == "engaged",
                "restored": restored,
                "mismatches": wrong[:SHOWN],
                "path": str(server.target),
                **self._reach(),
            }
            self._prepared.pop(order.undoes, None)
            if outcome == "not-engaged":  # told again until the server picks what was there
                return {"already": False, **said}
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._remember(order.id, said)
            self._stands(order, said, digest=order.before, picks=picks)
        return {"already": False, **said}

    def _check_on(self) -> None:
        if not self._on:
            detail = "this server takes no orders on files: RETUNED_TUNED=off, or not turned on"
            raise Refused("tuned-off", detail=detail)

    def _stands(
        self,
        order: TunedOrder,
        said: Mapping[str, Any],
        *,
        digest: str | None,
        picks: Mapping[Hashable, Any],
    ) -> None:
        """Remember what a kernel's file came to, to prove it anew whenever somebody asks."""
        self._standing[order.definition] = FileOrderStatus(
            definition=order.definition,
            order=order.id,
            artifact=order.artifact,
            epoch=order.epoch,
            change=order.change,
            digest=digest,
            outcome=str(said["outcome"]),
            picks=picks,
            reach=str(said["reach"]),
        )
        while len(self._standing) > MAX_HISTORY:
            self._standing.popitem(last=False)

    def _repeated(self, order: TunedOrder) -> None:
        """Take the later epoch of an order that stands already: its daemon counts from there."""
        standing = self._standing.get(order.definition)
        if standing is not None and standing.order == order.id and order.epoch > standing.epoch:
            ledger = self._ledger(servers.find(order.change))
            ledger.check(order.epoch)
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._standing[order.definition] = dataclasses.replace(standing, epoch=order.epoch)

    def _read(self, request: Mapping[str, Any], kind: str) -> TunedOrder:
        self._check_on()
        order = parse_tuned_order(request, trust=self._trust)
        if order.kind != kind:
            raise Refused("order-invalid", detail=f"'kind' is {order.kind}, not {kind}")
        self._fence().admit(request)
        return order

    def _reach(self) -> dict[str, Any]:
        """Say what an emptied cache does not reach: launches that were captured before."""
        known = self._graphs()
        graphs = {name: known.get(name, 0) for name in ("count", "captured_before", "following")}
        captured = bool(graphs["count"]) or bool(graphs["captured_before"])
        reach = "all" if graphs["following"] else "graphs-unknown"
        return {"reach": "needs-recapture" if captured else reach, "graphs": graphs}

    def _ledger(self, server: Server) -> Ledger:
        return self._ledgers.setdefault(str(server.target), Ledger())

    def _remember(self, order: str, said: dict[str, Any]) -> None:
        self._prepared.pop(order, None)
        self._outcomes[order] = said
        while len(self._outcomes) > MAX_HISTORY:
            self._outcomes.popitem(last=False)
