"""Order store: the orders of one node as records, and why some are not committed.

The reason is part of every report of the slots, so that a control plane that restarts learns it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from retuned.api.agent import MAX_SLOTS, BlockedOrder, Outcome
from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.node.history import facts_of
from retuned.node.order_context import FAILED, HELD, OPEN, ORDER, STANDING, OrderContext
from retuned.ports import Store, Stored
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SlotFacts, SwapKind, SwapOrder
from retuned.stages.watch import WatchReport
from retuned.telemetry.spans import Value

log = logging.getLogger(__name__)

_NEWEST = 256
"""Orders that are read to find the last epoch, or the swap that brought an artifact."""
_DETAIL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOrder:
    """An order with its phase."""

    order: SwapOrder
    phase: str
    traceparent: str = ""
    """Span of the last write; empty if tracing is off."""


def kept_order(store: Store, id: str) -> StoredOrder | None:
    """Return an order in any phase; None if it is not stored or not readable."""
    stored = store.get(ORDER, id)
    return None if stored is None else read_order(stored)


def latest(store: Store) -> dict[str, StoredOrder]:
    """Return the newest order of each slot that is in force or may come into force."""
    newest: dict[str, StoredOrder] = {}
    for phase in STANDING:
        for kept in map(read_order, store.list(ORDER, phase=phase)):
            if kept is None:
                continue
            known = newest.get(kept.order.definition)
            if known is None or known.order.epoch < kept.order.epoch:
                newest[kept.order.definition] = kept
    return newest


def newest_orders(store: Store) -> list[StoredOrder]:
    """Return the newest orders in any phase, oldest first."""
    found = map(read_order, store.list(ORDER, limit=_NEWEST))
    return [kept for kept in found if kept is not None]


def bringer(store: Store, order: SwapOrder) -> SwapOrder:
    """Return the swap that brought an order's artifact into the slot.

    That is the order itself, or for a rollback to an earlier variant the swap of that variant. If
    it is too old to be found, the order itself.
    """
    if order.kind is SwapKind.SWAP or order.artifact is None:
        return order
    swaps = [
        kept.order
        for kept in newest_orders(store)
        if kept.order.kind is SwapKind.SWAP
        and (kept.order.definition, kept.order.artifact) == (order.definition, order.artifact)
        and kept.order.epoch < order.epoch
    ]
    return max(swaps, key=lambda each: each.epoch, default=order)


def about(order: SwapOrder) -> dict[str, Value]:
    """Return the attributes of an order for a span or a log line."""
    return {
        "proposal": order.proposal,
        "kernel": order.definition,
        "kind": str(order.kind),
        "epoch": order.epoch,
    }


def slot_facts(ctx: OrderContext) -> list[SlotFacts] | None:
    """Return the state of the server's slots; None if it does not answer."""
    try:
        return [facts_of(slot) for slot in ctx.swapper.slots()]
    except TemporaryError as error:
        log.info("the server does not answer: %s", error)
        return None


def fresh_epoch(ctx: OrderContext, *, after: int = 0) -> int:
    """Return an epoch for a rollback of this node that every process of the server accepts."""
    every = [kept.order for kept in newest_orders(ctx.store)]
    return max(after + 1, swap_stage.next_epoch(every, slot_facts(ctx) or ()))


def fail(ctx: OrderContext, order: SwapOrder, report: WatchReport) -> None:
    """Record that a proposal's swap must not be committed here again, and why."""
    body = {"artifact": order.artifact, "report": report.model_dump(mode="json")}
    ctx.store.add(FAILED, order.proposal, body, phase="final")


def failure(store: Store, proposal: str) -> WatchReport | None:
    """Return the report on a proposal that failed here; None if it did not fail."""
    stored = store.get(FAILED, proposal)
    return None if stored is None else WatchReport.model_validate(stored.body["report"])


def harmful(store: Store) -> frozenset[Digest]:
    """Return the artifacts that failed here; no rollback goes to one."""
    bodies = (stored.body for stored in store.list(FAILED))
    return frozenset(str(body["artifact"]) for body in bodies if body["artifact"] is not None)


def wanted_artifacts(store: Store) -> frozenset[Digest]:
    """Return the artifacts that orders activate, or would restore."""
    orders: Sequence[SwapOrder] = [kept.order for kept in latest(store).values()]
    named = {each for order in orders for each in (order.artifact, order.previous)}
    return frozenset(each for each in named if each is not None)


def read_order(stored: Stored) -> StoredOrder | None:
    """Return the order in a record; None if it cannot be read, which is logged."""
    try:
        return StoredOrder(
            order=SwapOrder.model_validate(stored.body),
            phase=stored.phase,
            traceparent=stored.traceparent,
        )
    except ValidationError as error:
        # one bad record must not stop the watch over all other slots
        log.error("order %s is left out, it cannot be read: %s", stored.id, error)
        return None


def refuse(ctx: OrderContext, order: SwapOrder, *, reason: str, detail: str = "") -> None:
    """Report that an order will not be committed here, and keep the reason.

    Raises
    ------
    TemporaryError
        If it cannot be written.
    """
    ctx.report(order, Outcome.REFUSED, reason=reason, detail=detail)
    held = _held(order, reason=reason, detail=detail, final=True)
    ctx.store.add(HELD, order.id, held.model_dump(mode="json"), phase="final")
    ctx.standing.waits.pop(order.definition, None)


def wait(
    ctx: OrderContext, order: SwapOrder, *, reason: str, detail: str = "", final: bool = False
) -> None:
    """Remember why an order is not committed; the newest reason counts.

    Parameters
    ----------
    final
        Whether the server refuses it; the order is delivered again nevertheless.
    """
    held = _held(order, reason=reason, detail=detail, final=final)
    before = ctx.standing.waits.get(order.definition)
    ctx.standing.waits[order.definition] = held
    if before is None or (before.order, before.reason) != (held.order, held.reason):
        ctx.standing.news.set()


def held_orders(ctx: OrderContext) -> tuple[BlockedOrder, ...]:
    """Return why named orders are not committed, at most one per slot."""
    found: dict[str, BlockedOrder] = {}
    for slot, kept in latest(ctx.store).items():
        waits = ctx.standing.waits.get(slot)
        if waits is not None and waits.order == kept.order.id and kept.phase in OPEN:
            found[slot] = waits
    for id in sorted(ctx.standing.named):
        stored = ctx.store.get(HELD, id)
        if stored is not None:
            held = BlockedOrder.model_validate(stored.body)
            found[held.definition] = held
    return tuple(found[slot] for slot in sorted(found))[:MAX_SLOTS]


def judged(ctx: OrderContext, definition: str) -> tuple[str, WatchReport | None]:
    """Return the proposal that a slot's newest order concerns, and the report on it."""
    kept = latest(ctx.store).get(definition)
    if kept is None:
        return "", None
    harm = failure(ctx.store, kept.order.proposal)
    if kept.order.kind is SwapKind.ROLLBACK and harm is not None:
        return kept.order.proposal, harm
    concerned = bringer(ctx.store, kept.order).proposal
    proposal, report = ctx.standing.reports.get(definition, ("", None))
    return concerned, report if proposal == concerned else None


def _held(order: SwapOrder, *, reason: str, detail: str, final: bool) -> BlockedOrder:
    printable = "".join(each if each.isprintable() else " " for each in detail)
    return BlockedOrder(
        order=order.id,
        proposal=order.proposal,
        definition=order.definition,
        epoch=order.epoch,
        final=final,
        reason=reason,
        detail=printable[:_DETAIL],
    )
