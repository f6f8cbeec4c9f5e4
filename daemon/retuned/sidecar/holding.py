"""Why orders are not carried out here: refused for good, or not possible yet.

It is told with every look at the slots and not once, so that an operator that begins anew knows it
too, and nobody waits for a swap that will not come.
"""

from __future__ import annotations

from retuned.agent_wire import MAX_SLOTS, BlockedOrder, Outcome
from retuned.sidecar.context import Context, RecordKind
from retuned.sidecar.kept import latest, tell
from retuned.stages.swap import SwapOrder

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
