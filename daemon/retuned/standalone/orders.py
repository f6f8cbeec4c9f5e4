"""Orders as they are kept: what is in force, what is under way, whose it is, and what comes next.

Read by every step; nothing here decides, and all that is written is a line of history.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from retuned.contract import Digest, Guard
from retuned.errors import TemporaryError
from retuned.node.history import facts_of
from retuned.ports import Event, Stored
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SlotFacts, SwapKind, SwapOrder
from retuned.standalone.context import Context, RecordKind

__all__ = [
    "IN_PLACE", "OPEN", "STANDING", "StoredOrder", "fresh_epoch", "in_force", "in_phases",
    "latest", "live_guard", "orders", "owner", "retire", "say", "server_facts", "slot_of",
    "swap_order_of",
]  # fmt: skip

log = logging.getLogger(__name__)

OPEN = ("new", "prepared")
"""Phases of an order that the server may not have carried out."""

IN_PLACE = ("watching", "promoted")
"""Phases of a proposal whose artifact is in force."""

STANDING = ("new", "prepared", "done")
"""Phases of orders that are in force, were so not long ago, or may come to be; in all others they
are in force no more, or never were."""

_PHASES = {
    "proposed": "awaiting-approval", "awaiting": "awaiting-approval", "swapped": "watching",
    "withdrawn": "awaiting-approval", "alarm": "rolling-back", "approved": "approved",
    "rejected": "rejected", "expired": "expired", "aborted": "aborted", "refused": "refused",
    "superseded": "superseded", "promoted": "promoted", "rolled-back": "rolled-back",
    "rollback-failed": "rollback-failed",
}  # fmt: skip
"""By line of a history: the phase, as numbers call it, that a proposal has come to."""

_PAST = "past"
"""Phase of an order that was carried out so long ago that nothing leads back to it."""

_KEPT = 32
"""Orders of a slot that are never put away, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOrder:
    """An order as it is kept."""

    order: SwapOrder
    """What was ordered."""
    phase: str
    """How far it has come."""
    traceparent: str = ""
    """Span in which it was last written; see `Stored.traceparent`."""


def orders(ctx: Context) -> Sequence[StoredOrder]:
    """Return the orders that are in force or may be carried out, in order of their epochs.

    Those that are over, and those that `retire` put away are not read.
    """
    stored = [each for phase in STANDING for each in ctx.store.list(RecordKind.ORDER, phase=phase)]
    return sorted(_read(stored), key=lambda kept: kept.order.epoch)


def _read(records: Sequence[Stored]) -> list[StoredOrder]:
    found = []
    for stored in records:
        try:
            order = SwapOrder.model_validate(stored.body)
        except ValidationError as error:
            # one bad record must not stop the watch over all other slots
            log.error("order %s is left out, it cannot be read: %s", stored.id, error)
            continue
        found.append(StoredOrder(order=order, phase=stored.phase, traceparent=stored.traceparent))
    return found


def latest(ctx: Context, *, done: bool = False) -> dict[str, StoredOrder]:
    """Return the newest order per slot: what ought to be in force, or with `done` what is."""
    newest: dict[str, StoredOrder] = {}
    for kept in orders(ctx):
        if done and kept.phase != "done":
            continue
        known = newest.get(kept.order.definition)
        if known is None or known.order.epoch < kept.order.epoch:
            newest[kept.order.definition] = kept
    return newest


def in_force(ctx: Context, definition: str) -> Digest | None:
    """Digest of the artifact that the last order put into a slot; None is the original."""
    kept = latest(ctx).get(definition)
    return kept.order.artifact if kept else None


def live_guard(ctx: Context, definition: str) -> Guard | None:
    """Shapes that a swapped-in variant serves; None where the original serves all."""
    kept = latest(ctx).get(definition)
    return kept.order.guard if kept is not None and kept.order.artifact is not None else None


def swap_order_of(ctx: Context, proposal: str) -> StoredOrder | None:
    """Return the newest swap order of a proposal, whatever became of it."""
    named = ctx.store.list(RecordKind.ORDER, proposal=proposal)
    mine = [kept for kept in _read(named) if kept.order.kind is SwapKind.SWAP]
    return max(mine, key=lambda kept: kept.order.epoch, default=None)


def owner(ctx: Context, order: SwapOrder) -> str | None:
    """Return the proposal that an order brings into force: its own, or one that comes back."""
    if order.kind is SwapKind.SWAP or order.artifact is None:
        return order.proposal if order.kind is SwapKind.SWAP else None
    newest = _bringer(orders(ctx), order)
    if newest is None:  # so long ago that it was put away
        newest = _bringer(_read(ctx.store.list(RecordKind.ORDER, phase=_PAST)), order)
    return newest.proposal if newest is not None else None


def _bringer(found: Sequence[StoredOrder], order: SwapOrder) -> SwapOrder | None:
    """Return the newest swap before an order that brought the same artifact into its slot."""
    earlier = [
        kept.order
        for kept in found
        if kept.phase in ("done", _PAST)
        and kept.order.kind is SwapKind.SWAP
        and (kept.order.definition, kept.order.artifact) == (order.definition, order.artifact)
        and kept.order.epoch < order.epoch
    ]
    return max(earlier, key=lambda each: each.epoch, default=None)


def server_facts(ctx: Context) -> list[SlotFacts] | None:
    """Return what the server says of its slots; None where it does not answer."""
    try:
        return [facts_of(slot) for slot in ctx.swapper.slots()]
    except TemporaryError as error:
        log.info("server does not answer, orders wait: %s", error)
        return None


def fresh_epoch(ctx: Context, *, after: int = 0) -> int:
    """Return an epoch that every process will accept; `after` is one the server is known to have.

    Called outside transactions, because a server may take seconds to answer.
    """
    facts: Sequence[SlotFacts] = ()
    if not after:
        try:
            facts = [facts_of(slot) for slot in ctx.swapper.slots()]
        except TemporaryError as error:
            log.info("epochs go on from the last order: %s", error)
    # epochs grow with each order that is written, so the newest few have the last one
    newest = _read(ctx.store.list(RecordKind.ORDER, limit=_KEPT))
    known = [kept.order for kept in (*newest, *orders(ctx))]
    return max(after + 1, swap_stage.next_epoch(known, facts))


def retire(ctx: Context, *, most: int = 1_000) -> int:
    """Put away orders of long ago, `most` at a time; return how many.

    Of each slot the newest stay, and those that brought what the newest may go back to. What is put
    away is still found where it is asked for.
    """
    by_slot: dict[str, list[StoredOrder]] = {}
    for kept in orders(ctx):
        if kept.phase == "done":
            by_slot.setdefault(kept.order.definition, []).append(kept)
    going: list[str] = []
    for own in by_slot.values():
        older, newest = own[:-_KEPT], own[-_KEPT:]
        wanted = {each for kept in newest for each in (kept.order.artifact, kept.order.previous)}
        going += [
            kept.order.id
            for kept in older
            if kept.order.artifact is None or kept.order.artifact not in wanted
        ]
    with ctx.store.transaction():
        return sum(
            ctx.store.advance(RecordKind.ORDER, id, expect="done", to=_PAST) for id in going[:most]
        )


def say(ctx: Context, proposal: str, what: str, who: str = "retuned", **detail: object) -> None:
    """Write a line of a proposal's history, and count what ends a phase of it."""
    if what in _PHASES:
        ctx.telemetry.count("retuned_swap_phases_total", phase=_PHASES[what])
    at = ctx.clock.now()
    ctx.store.record(
        Event(at=at, kind=RecordKind.PROPOSAL, id=proposal, what=what, who=who, detail=detail)
    )


def slot_of(ctx: Context, proposal: Stored) -> str:
    """Return the slot of a proposal; where nobody understands it, its order knows."""
    named = proposal.body.get("definition")
    if isinstance(named, str):
        return named
    kept = swap_order_of(ctx, proposal.id)
    return kept.order.definition if kept is not None else ""


def in_phases(ctx: Context, phases: Sequence[str]) -> list[Stored]:
    """Return the proposals in any of some phases."""
    return [
        stored for phase in phases for stored in ctx.store.list(RecordKind.PROPOSAL, phase=phase)
    ]
