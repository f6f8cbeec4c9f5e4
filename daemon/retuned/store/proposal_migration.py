"""Proposal migration: state of version 3 as the one state machine reads it.

Version 3 had a separate state machine for one machine: other phases, orders that the state machine
wrote itself, and quarantines as records. The old rows stay for one release under kinds that begin
with ``v3-``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retuned.api.proposal import (
    PodOrder,
    PodState,
    ProposalPhase,
    RolloutStatus,
    Step,
    SwapProposalStatus,
)
from retuned.api.target import ActiveKernel, Quarantined, TuningTargetStatus

_P = ProposalPhase
_PHASES: Mapping[str, ProposalPhase] = {
    "awaiting": _P.AWAITING_APPROVAL,
    "approved": _P.SCHEDULED,
    "swapping": _P.CANARY,
    "watching": _P.ANALYZING,
    "promoted": _P.PROMOTED,
    "rolling-back": _P.ROLLING_BACK,
    "rollback-failed": _P.ROLLBACK_FAILED,
    "rolled-back": _P.ROLLED_BACK,
    "rejected": _P.REJECTED,
    "expired": _P.EXPIRED,
    "aborted": _P.ABORTED,
    "refused": _P.INVALID,
    "superseded": _P.SUPERSEDED,
}
_ORDER_PHASES = {"prepared": "sent", "withdrawn": "superseded", "past": "superseded"}
_NODE = "server"
"""Name and uid of the one node, see `retuned.standalone.facts.NODE`."""
_NAME_LENGTH = 60
"""Of a proposal's name, see `retuned.standalone.facts.name_of`."""
_COMMITTED = ("done", "past")
_REASON = "migrated"


@dataclass(frozen=True, slots=True)
class _Order:
    """One order of version 3."""

    id: str
    phase: str
    body: dict[str, Any]
    at: datetime

    @property
    def slot(self) -> str:
        return str(self.body["definition"])

    @property
    def epoch(self) -> int:
        return int(self.body["epoch"])

    @property
    def is_swap(self) -> bool:
        return bool(self.body["kind"] == "swap")


def migrate_proposals(db: sqlite3.Connection) -> None:
    """Rewrite proposals, orders and quarantines; every proposal gets a status and an event."""
    db.execute(
        "INSERT INTO records (kind, id, phase, body, created_at, updated_at, proposal, traceparent)"
        " SELECT 'v3-' || kind, id, phase, body, created_at, updated_at, proposal, traceparent"
        " FROM records WHERE kind IN ('proposal', 'order', 'quarantine')"
    )
    orders = _orders(db)
    active = _active_kernels(db, orders)
    for id, phase, created_at in db.execute(
        "SELECT id, phase, updated_at FROM records WHERE kind = 'proposal' ORDER BY seq"
    ).fetchall():
        _migrate_proposal(db, id, phase, orders, at=datetime.fromisoformat(created_at))
    _migrate_orders(db, orders)
    _write_target(db, active)
    db.execute("DELETE FROM records WHERE kind = 'quarantine'")


def _orders(db: sqlite3.Connection) -> list[_Order]:
    found = []
    for id, phase, body, at in db.execute(
        "SELECT id, phase, body, created_at FROM records WHERE kind = 'order' ORDER BY seq"
    ):
        read = json.loads(body)
        if {"definition", "epoch", "kind", "proposal"} <= read.keys():
            found.append(_Order(id, phase, read, datetime.fromisoformat(at)))
    return sorted(found, key=lambda each: each.epoch)


def _migrate_proposal(
    db: sqlite3.Connection, id: str, phase: str, orders: list[_Order], *, at: datetime
) -> None:
    mine = [each for each in orders if each.body["proposal"] == id]
    swaps = [each for each in mine if each.is_swap]
    committed = [each for each in swaps if each.phase in _COMMITTED]
    new = _PHASES.get(phase)
    if new is None:
        return  # of this version, or unknown: its reader reports it
    if new is _P.SUPERSEDED and committed:
        new = _P.PROMOTED  # another one replaced it
    rollout = None
    if swaps and not new.is_before_swap:
        rollout = _rollout(swaps[-1], mine[-1], orders)
    step = Step(from_=_P.PENDING, to=new, at=at, reason=_REASON)
    status = SwapProposalStatus(phase=new, reason=_REASON, rollout=rollout, history=(step,))
    body = json.dumps(status.model_dump(mode="json", by_alias=True), sort_keys=True)
    now = datetime.now(UTC).isoformat()
    db.execute("UPDATE records SET phase = ? WHERE kind = 'proposal' AND id = ?", (str(new), id))
    db.execute(
        "INSERT INTO records (kind, id, phase, body, created_at, updated_at)"
        " VALUES ('proposal-status', ?, 'current', ?, ?, ?)",
        (id, body, now, now),
    )
    db.execute(
        "INSERT INTO events (at, kind, id, what, who, detail)"
        " VALUES (?, 'proposal', ?, 'migrated', 'retuned', ?)",
        (now, id, json.dumps({"from": phase, "to": str(new)})),
    )


def _rollout(swap: _Order, newest: _Order, orders: list[_Order]) -> RolloutStatus:
    """Return the progress of a swap over the one node, from its orders."""
    back = not newest.is_swap
    told = PodOrder(
        name=_NODE,
        uid=_NODE,
        wants=PodState.BACK if back else PodState.SWAP,
        epoch=newest.epoch,
        since=newest.at,
        done=newest.phase in _COMMITTED,
    )
    return RolloutStatus(
        started_at=swap.at,
        wave_started_at=swap.at,
        last_swap_at=swap.at,
        back_since=newest.at if back else None,
        previous=_previous(swap, orders),
        last_epoch=newest.epoch,
        pods=(told,),
    )


def _previous(swap: _Order, orders: list[_Order]) -> ActiveKernel | None:
    """Return what the slot ran before a swap; None for the original, or if its guard is unknown."""
    digest, guard = swap.body.get("previous"), swap.body.get("previous_guard")
    earlier = [
        each
        for each in orders
        if each.is_swap
        and each.slot == swap.slot
        and each.body.get("artifact") == digest
        and each.epoch < swap.epoch
    ]
    if digest is None or guard is None or not earlier:
        return None
    return _active(earlier[-1])


def _active(order: _Order) -> ActiveKernel:
    name = str(order.body["proposal"]).removeprefix("sha256:")[:_NAME_LENGTH]
    return ActiveKernel.model_validate(
        {
            "kernel": order.slot,
            "digest": order.body["artifact"],
            "guard": order.body["guard"],
            "epoch": order.epoch,
            "proposal": name,
            "since": order.at.isoformat(),
        }
    )


def _active_kernels(db: sqlite3.Connection, orders: list[_Order]) -> tuple[ActiveKernel, ...]:
    """Return the promoted variants that slots run."""
    promoted = {
        id
        for (id,) in db.execute(
            "SELECT id FROM records WHERE kind = 'proposal' AND phase = 'promoted'"
        )
    }
    newest = {each.slot: each for each in orders if each.phase == "done"}
    return tuple(
        _active(each)
        for each in newest.values()
        if each.is_swap and each.body["proposal"] in promoted
    )


def _migrate_orders(db: sqlite3.Connection, orders: list[_Order]) -> None:
    newest = {each.slot: each.epoch for each in orders if each.phase == "done"}
    for each in orders:
        phase = _ORDER_PHASES.get(each.phase, each.phase)
        if phase == "done" and each.epoch < newest[each.slot]:
            phase = "superseded"
        if phase != each.phase:
            db.execute(
                "UPDATE records SET phase = ? WHERE kind = 'order' AND id = ?", (phase, each.id)
            )


def _write_target(db: sqlite3.Connection, active: tuple[ActiveKernel, ...]) -> None:
    quarantine = []
    for id, body in db.execute("SELECT id, body FROM records WHERE kind = 'quarantine'"):
        read = json.loads(body)
        quarantine.append(
            Quarantined.model_validate(
                {"digest": id, "until": read["until"], "reason": read["reason"]}
            )
        )
    if not active and not quarantine:
        return
    status = TuningTargetStatus(active_kernels=active, quarantine=tuple(quarantine[-256:]))
    now = datetime.now(UTC).isoformat()
    db.execute(
        "INSERT INTO records (kind, id, phase, body, created_at, updated_at)"
        " VALUES ('target', 'status', 'current', ?, ?, ?)",
        (json.dumps(status.model_dump(mode="json", by_alias=True)), now, now),
    )
