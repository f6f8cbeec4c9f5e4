"""Orders on tuned-config files, carried out inside the server: write, clear, and ask it itself.

A change counts as engaged when the server's own lookup says so: what was written at the guarded
batch sizes, what it said before at all others. Anything else puts the old bytes back and clears
again. All of it is on the control thread; launches only see that a cache was emptied.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retuned.runtime.epochs import MAX_HISTORY, Fence, Ledger
from retuned.runtime.spec import Refused
from retuned.runtime.trust import Trust
from retuned.runtime.tuned import servers
from retuned.runtime.tuned.changes import TUNABLE_OP, Plan, plan
from retuned.runtime.tuned.files import Entry, entries, kept_before, read_file, replace, restore
from retuned.runtime.tuned.looking import look
from retuned.runtime.tuned.orders import TunedOrder, parse_tuned_order
from retuned.runtime.tuned.picking import changed_picks, picks_of, wrong_picks
from retuned.runtime.tuned.servers import Server
from retuned.runtime.tuned.standing import Standing, report_of
from retuned.runtime.tuned.strict import digest_of
from retuned.runtime.tuned.tunable_op import read_results

log = logging.getLogger(__name__)

MAX_PREPARED = 16
"""Orders that may stand prepared; the oldest goes first."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An order that can be carried out at once."""

    order: TunedOrder
    server: Server
    plan: Plan
    expected: bytes | None
    """What lies at the target now."""


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
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        self._ledgers: dict[str, Ledger] = {}
        self._outcomes: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._standing: OrderedDict[str, Standing] = OrderedDict()

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
            prepared = self._plan(order)
            self._check_picks(prepared)
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
            said = self._carry_out(prepared)
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
            restored, theirs = _restored(order, server)
            server.clear()
            now = servers.find(order.change)  # what is read may be another file again
            outcome, wrong = "left-alone" if theirs else "needs-restart", []
            picks: Mapping[Hashable, Any] = {}
            if now.pick is not None and not theirs:
                found = self._plan_for(order, now)
                picks = found.was
                wrong = wrong_picks(now, {**found.outside, **picks})
                outcome = "not-engaged" if wrong else "engaged"
            said = {
                "outcome": outcome,
                "engaged": outcome == "engaged",
                "restored": restored,
                "mismatches": wrong[:_SHOWN],
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
        self._standing[order.definition] = Standing(
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

    def _plan(self, order: TunedOrder) -> _Prepared:
        server = servers.find(order.change)
        data = _bytes_of(server.source, server.target)
        expected = data if server.source == server.target else read_file(server.target)
        if digest_of(data) != order.before:
            # another rank of this server, or this one before it was restarted, has written it
            listed = entries(server.target)
            if not listed or listed[-1].order != order.id or listed[-1].after != digest_of(data):
                detail = f"{server.source} is {digest_of(data)}, the order is for {order.before}"
                raise Refused("file-differs", detail=detail)
            expected = kept_before(server.target, listed[-1])
            data = expected if expected is not None else _bytes_of(server.fallback, server.target)
            if digest_of(data) != order.before:
                detail = f"{server.target} was made from a file that is no more; roll it back first"
                raise Refused("file-differs", detail=detail)
        return _Prepared(order, server, plan(server.target.name, data, order.change), expected)

    def _plan_for(self, order: TunedOrder, server: Server) -> Plan:
        data = _bytes_of(server.source, server.target)
        return plan(server.target.name, data, order.change)

    def _check_picks(self, prepared: _Prepared) -> None:
        """Make sure that this server picks by the rule that the plan rests on, before a write."""
        server, found = prepared.server, prepared.plan
        if server.pick is None:
            return
        wrong = wrong_picks(server, found.outside)
        if wrong:
            detail = f"the server's own lookup says something else already: {wrong[:_SHOWN]}"
            raise Refused("picks-differ", detail=detail[:1000])
        if prepared.order.change.format == TUNABLE_OP:
            self._check_memory(prepared)

    def _check_memory(self, prepared: _Prepared) -> None:
        """Make sure that clearing PyTorch's results loses none that only its memory has."""
        file = read_results(prepared.server.target.name, prepared.plan.data).solutions()
        results = servers.tunable_results()
        lost = [key for key in results if key not in file]
        if lost:
            detail = f"{len(lost)} results are in no file, such as {lost[0]}; write them first"
            raise Refused("rows-in-memory-only", detail=detail)

    def _carry_out(self, prepared: _Prepared) -> dict[str, Any]:
        order, server, found = prepared.order, prepared.server, prepared.plan
        before = picks_of(server, found.outside)
        entry = Entry(
            order=order.id,
            epoch=order.epoch,
            who=order.who or "daemon",
            when=order.when or datetime.now(UTC).isoformat(timespec="seconds"),
            before=digest_of(prepared.expected),
            after=digest_of(found.data) or "",
            rows=found.rows,
        )
        wrote = replace(server.target, found.data, expected=prepared.expected, entry=entry)
        outcome, reason, restored = "needs-restart", "", False
        wrong: list[str] = []
        if server.pick is not None:
            try:
                server.clear()
                wrong = wrong_picks(server, {**found.inside, **found.outside})
                defaults = {m: was for m, was in before.items() if found.outside[m] is None}
                wrong += changed_picks(server, defaults)  # of which the file says nothing
            except Refused as error:
                wrong, reason = [error.detail], error.reason
            except BaseException:  # what was written and is not known to be picked does not stay
                self._back(prepared)
                raise
            outcome = "not-engaged" if wrong else "engaged"
            reason = reason or ("picks-differ" if wrong else "")
        if wrong:
            restored = self._back(prepared)
        return {
            "outcome": outcome,
            "engaged": outcome == "engaged",
            "reason": reason,
            "mismatches": wrong[:_SHOWN],
            "probes": len(found.inside) + len(before),
            "wrote": wrote,
            "restored": restored,
            "path": str(server.target),
            "digest": None if restored else entry.after,
            "compiles": "at-first-launch",
            **self._reach(),
        }

    def _back(self, prepared: _Prepared) -> bool:
        """Put the old bytes back and clear again; False if that cannot be done."""
        try:
            restore(prepared.server.target, order=prepared.order.id)
            prepared.server.clear()
        except Refused as error:
            log.error("%s: cannot be put back: %s", prepared.server.target, error)
            return False
        return True

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


def _bytes_of(path: Path | None, target: Path) -> bytes | None:
    """Return a file's bytes; what is only read may be a link, as installed packages have them."""
    if path is None:
        return None
    return read_file(path if path == target else path.resolve())


def _restored(order: TunedOrder, server: Server) -> tuple[bool, bool]:
    """Put the file back; return whether it was changed, and whether others' file stays.

    What another rank of the server has put back already is no fault.
    """
    restored, missing = False, None
    for each in (order.undoes, *order.older):
        try:
            restored = restore(server.target, order=each) or restored
        except Refused as error:
            if error.reason == "changed-by-others" and order.leaves:
                return restored, True
            if error.reason != "nothing-to-restore":
                raise
            missing = error
    if missing is not None:
        source = servers.find(order.change).source
        if digest_of(_bytes_of(source, server.target)) != order.before:
            if order.leaves:
                return restored, True
            raise missing
    return restored, False
