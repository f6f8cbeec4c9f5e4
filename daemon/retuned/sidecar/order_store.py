"""Why orders are not carried out here: refused for good, or not possible yet.

It is told with every look at the slots and not once, so that an operator that begins anew knows it
too, and nobody waits for a swap that will not come.

Orders as a sidecar keeps them, and what it tells of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from retuned.api.agent import MAX_SLOTS, BlockedOrder, OrderDone, Outcome
from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.node.history import facts_of
from retuned.ports import Stored
from retuned.sidecar.context import STANDING, Context, RecordKind
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SlotFacts, SwapOrder
from retuned.stages.watch import WatchReport
from retuned.telemetry.spans import Value

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOrder:
    """An order as it is kept."""

    order: SwapOrder
    """What was ordered."""
    phase: str
    """How far it has come."""
    traceparent: str = ""
    """Span in which it was last written; empty where traces are off."""


def kept_order(ctx: Context, id: str) -> StoredOrder | None:
    """Return an order, whatever became of it; None where there is none that can be read."""
    stored = ctx.store.get(RecordKind.ORDER, id)
    return None if stored is None else _read(stored)


def latest(ctx: Context) -> dict[str, StoredOrder]:
    """Return the newest order of each slot that is in force or on its way."""
    newest: dict[str, StoredOrder] = {}
    for phase in STANDING:
        for kept in map(_read, ctx.store.list(RecordKind.ORDER, phase=phase)):
            if kept is None:
                continue
            known = newest.get(kept.order.definition)
            if known is None or known.order.epoch < kept.order.epoch:
                newest[kept.order.definition] = kept
    return newest


def about(order: SwapOrder) -> dict[str, Value]:
    """Return what a span or a line of the log says of an order."""
    return {
        "proposal": order.proposal,
        "kernel": order.definition,
        "kind": str(order.kind),
        "epoch": order.epoch,
    }


def slot_facts(ctx: Context) -> list[SlotFacts] | None:
    """Ask the server how its slots stand; None where it does not answer."""
    try:
        return [facts_of(slot) for slot in ctx.swapper.slots()]
    except TemporaryError as error:
        log.info("the server does not answer: %s", error)
        return None


def fresh_epoch(ctx: Context, *, after: int = 0) -> int:
    """Return an epoch that every process of the server will accept, for a way back from here."""
    every = [kept.order for kept in map(_read, ctx.store.list(RecordKind.ORDER, limit=256)) if kept]
    return max(after + 1, swap_stage.next_epoch(every, slot_facts(ctx) or ()))


def fail(ctx: Context, order: SwapOrder, report: WatchReport) -> None:
    """Remember that a proposal's swap is never to be carried out here again, and why."""
    body = {"artifact": order.artifact, "report": report.model_dump(mode="json")}
    ctx.store.add(RecordKind.FAILED, order.proposal, body, phase="final")


def failure(ctx: Context, proposal: str) -> WatchReport | None:
    """Return what was judged of a proposal that failed here; None where it did not."""
    stored = ctx.store.get(RecordKind.FAILED, proposal)
    return None if stored is None else WatchReport.model_validate(stored.body["report"])


def harmful(ctx: Context) -> frozenset[Digest]:
    """Return the artifacts that failed here: no way back leads to one."""
    bodies = (stored.body for stored in ctx.store.list(RecordKind.FAILED))
    return frozenset(str(body["artifact"]) for body in bodies if body["artifact"] is not None)


def tell(
    ctx: Context,
    order: SwapOrder,
    outcome: Outcome,
    *,
    reason: str = "",
    detail: str = "",
    took_ns: int | None = None,
) -> None:
    """Put what became of an order into the spool, to be told at once.

    Raises
    ------
    TemporaryError
        If it cannot be written.
    """
    said = OrderDone(
        pod=ctx.pod,
        target=ctx.target or order.target,
        order=order.id,
        proposal=order.proposal,
        definition=order.definition,
        epoch=order.epoch,
        outcome=outcome,
        reason=reason,
        detail="".join(each if each.isprintable() else " " for each in detail)[:2000],
        at=ctx.clock.now(),
        took_ns=took_ns,
    )
    ctx.spool.add(said, key=f"{order.id} {outcome}")
    ctx.standing.news.set()
    ctx.telemetry.count("retuned_orders_total", outcome=str(outcome), reason=reason)


def wanted_artifacts(ctx: Context) -> frozenset[Digest]:
    """Return the artifacts that orders lead to, or back to."""
    orders: Sequence[SwapOrder] = [kept.order for kept in latest(ctx).values()]
    named = {each for order in orders for each in (order.artifact, order.previous)}
    return frozenset(each for each in named if each is not None)


def _read(stored: Stored) -> StoredOrder | None:
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


_DETAIL = 2000


def refuse(ctx: Context, order: SwapOrder, *, reason: str, detail: str = "") -> None:
    """Tell that an order will not be carried out here, and keep why.

    Raises
    ------
    TemporaryError
        If it cannot be written.
    """
    tell(ctx, order, Outcome.REFUSED, reason=reason, detail=detail)
    held = _held(order, reason=reason, detail=detail, final=True)
    ctx.store.add(RecordKind.HELD, order.id, held.model_dump(mode="json"), phase="final")
    ctx.standing.waits.pop(order.definition, None)


def wait(ctx: Context, order: SwapOrder, *, reason: str, detail: str = "") -> None:
    """Note why an order cannot be carried out yet; the newest reason counts."""
    held = _held(order, reason=reason, detail=detail, final=False)
    before = ctx.standing.waits.get(order.definition)
    ctx.standing.waits[order.definition] = held
    if before is None or (before.order, before.reason) != (held.order, held.reason):
        ctx.standing.news.set()


def go(ctx: Context, order: SwapOrder) -> None:
    """Note that an order waits for nothing any more."""
    ctx.standing.waits.pop(order.definition, None)


def held_orders(ctx: Context) -> tuple[BlockedOrder, ...]:
    """Return why orders that the operator names are not carried out, at most one a slot."""
    found: dict[str, BlockedOrder] = {}
    for slot, kept in latest(ctx).items():
        waits = ctx.standing.waits.get(slot)
        if waits is not None and waits.order == kept.order.id and kept.phase == "new":
            found[slot] = waits
    for id in sorted(ctx.standing.named):
        stored = ctx.store.get(RecordKind.HELD, id)
        if stored is not None:
            held = BlockedOrder.model_validate(stored.body)
            found[held.definition] = held
    return tuple(found[slot] for slot in sorted(found))[:MAX_SLOTS]


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
