"""Application of one change to a tuned-config file: plan, write, verify by a lookup, or restore."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files import servers
from retuned.runtime.tuned_files.changes import TUNABLE_OP, Plan, plan
from retuned.runtime.tuned_files.files import (
    FileChange,
    entries,
    kept_before,
    read_file,
    replace,
    restore,
)
from retuned.runtime.tuned_files.lookup import changed_picks, picks_of, wrong_picks
from retuned.runtime.tuned_files.orders import TunedOrder
from retuned.runtime.tuned_files.servers import Server
from retuned.runtime.tuned_files.strict import digest_of
from retuned.runtime.tuned_files.table_formats import read_results

log = logging.getLogger(__name__)

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """An order that can be executed immediately."""

    order: TunedOrder
    server: Server
    plan: Plan
    expected: bytes | None
    """Current bytes of the target."""


def prepare(order: TunedOrder) -> Prepared:
    """Plan a change of the current file; nothing is written.

    Raises
    ------
    Refused
        ``file-differs``, or as `servers.find` and `changes.plan`.
    """
    server = servers.find(order.change)
    data = _bytes_of(server.source, server.target)
    expected = data if server.source == server.target else read_file(server.target)
    if digest_of(data) != order.before:
        # another rank of this server, or this one before a restart, has written it
        listed = entries(server.target)
        if not listed or listed[-1].order != order.id or listed[-1].after != digest_of(data):
            detail = f"{server.source} is {digest_of(data)}, the order is for {order.before}"
            raise Refused("file-differs", detail=detail)
        expected = kept_before(server.target, listed[-1])
        data = expected if expected is not None else _bytes_of(server.fallback, server.target)
        if digest_of(data) != order.before:
            detail = f"{server.target} was made from a file that is gone; roll it back first"
            raise Refused("file-differs", detail=detail)
    return Prepared(order, server, plan(server.target.name, data, order.change), expected)


def plan_for(order: TunedOrder, server: Server) -> Plan:
    data = _bytes_of(server.source, server.target)
    return plan(server.target.name, data, order.change)


def check_picks(prepared: Prepared) -> None:
    """Verify before a write that this server picks by the rule that the plan assumes.

    Raises
    ------
    Refused
        ``picks-differ`` or ``rows-in-memory-only``.
    """
    server, found = prepared.server, prepared.plan
    if server.pick is None:
        return
    wrong = wrong_picks(server, found.outside)
    if wrong:
        detail = f"the server's own lookup differs already: {wrong[:SHOWN]}"
        raise Refused("picks-differ", detail=detail[:1000])
    if prepared.order.change.format == TUNABLE_OP:
        _check_memory(prepared)


def _check_memory(prepared: Prepared) -> None:
    """Verify that clearing PyTorch's results loses none that exist only in memory."""
    file = read_results(prepared.server.target.name, prepared.plan.data).solutions()
    results = servers.tunable_results()
    lost = [key for key in results if key not in file]
    if lost:
        detail = f"{len(lost)} results are in no file, such as {lost[0]}; write them first"
        raise Refused("rows-in-memory-only", detail=detail)


def carry_out(prepared: Prepared) -> dict[str, Any]:
    """Write, clear, and check what is picked now; a change that is not picked is restored.

    Returns
    -------
    dict
        The outcome, for the control socket.

    Raises
    ------
    Refused
        As `replace`.
    """
    order, server, found = prepared.order, prepared.server, prepared.plan
    before = picks_of(server, found.outside)
    entry = FileChange(
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
            wrong += changed_picks(server, defaults)  # sizes without a row in the file
        except Refused as error:
            wrong, reason = [error.detail], error.reason
        except BaseException:  # a written change whose pick is unknown must not stay
            _back(prepared)
            raise
        outcome = "not-engaged" if wrong else "engaged"
        reason = reason or ("picks-differ" if wrong else "")
    if wrong:
        restored = _back(prepared)
    return {
        "outcome": outcome,
        "engaged": outcome == "engaged",
        "reason": reason,
        "mismatches": wrong[:SHOWN],
        "probes": len(found.inside) + len(before),
        "wrote": wrote,
        "restored": restored,
        "path": str(server.target),
        "digest": None if restored else entry.after,
        "compiles": "at-first-launch",
    }


def _back(prepared: Prepared) -> bool:
    """Restore the old bytes and clear again; False if that is not possible."""
    try:
        restore(prepared.server.target, order=prepared.order.id)
        prepared.server.clear()
    except Refused as error:
        log.error("%s: cannot be restored: %s", prepared.server.target, error)
        return False
    return True


def put_back(order: TunedOrder, server: Server) -> tuple[bool, bool]:
    """Restore the file; return whether it was changed, and whether another writer's file remains.

    It is not an error if another rank of the server has restored it already.

    Raises
    ------
    Refused
        As `restore`.
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


def _bytes_of(path: Path | None, target: Path) -> bytes | None:
    """Return a file's bytes; a file that is only read may be a link, as in installed packages."""
    if path is None:
        return None
    return read_file(path if path == target else path.resolve())
