"""Order intake: what the control plane names for this node is taken, refused or withdrawn.

After the deletion of an object the control plane cannot order its rollback, and no finalizer blocks
the deletion. So the node agent rolls back by itself the orders that the control plane's answers
have not named for a while. A control plane that does not answer changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from retuned.api.agent import Outcome
from retuned.node import order_store
from retuned.node.order_checks import Refusal, judge_order, stands_behind
from retuned.node.order_context import FAILED, ORDER, WITHDRAWN, OrderContext
from retuned.node.order_store import StoredOrder, about, fresh_epoch, harmful, latest, slot_facts
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder

log = logging.getLogger(__name__)

REASON = "withdrawn"
"""Reason code of the rollback of an order that is not named any more."""


def take(ctx: OrderContext, orders: Sequence[SwapOrder], *, traces: Mapping[str, str]) -> bool:
    """Take a set of orders; True if there is something new to commit. Repeating it is harmless.

    Parameters
    ----------
    orders
        Everything that the control plane names for this node now.
    traces
        By order: the span in which it was made; absent if tracing is off.
    """
    fresh = []
    for order in orders:
        with ctx.spans.span("order", after=traces.get(order.id, ""), about=about(order)):
            fresh.append(_take(ctx, order))
    named = frozenset(order.id for order in orders)
    _drop_unnamed(ctx, named)
    rolled_back = withdraw(ctx, orders)
    # written last: a set that was taken in part is requested again
    ctx.standing.named, ctx.standing.named_at_s = named, ctx.clock.monotonic_s()
    return any(fresh) or rolled_back


def withdraw(ctx: OrderContext, named: Sequence[SwapOrder]) -> bool:
    """Order rollbacks of what has not been named for too long; True if there are any.

    Parameters
    ----------
    named
        Everything that the control plane names for this node now.
    """
    now_s, unnamed = ctx.clock.monotonic_s(), ctx.standing.unnamed
    alone = [kept for kept in latest(ctx.store).values() if not stands_behind(kept.order, named)]
    for id in unnamed.keys() - {kept.order.id for kept in alone}:
        del unnamed[id]
    due = [
        kept
        for kept in alone
        if now_s - unnamed.setdefault(kept.order.id, now_s) >= ctx.settings.withdrawn_s
    ]
    for kept in due:
        attributes = about(kept.order) | {"reason": REASON}
        with ctx.spans.span("rollback", after=kept.traceparent, about=attributes):
            _withdraw(ctx, kept, named)
    return bool(due)


def _take(ctx: OrderContext, order: SwapOrder) -> bool:
    same = order_store.kept_order(ctx.store, order.id)
    newest = latest(ctx.store).get(order.definition)
    refusal = judge_order(
        order,
        target=ctx.target,
        same=same.order if same else None,
        newest=newest.order if newest else None,
        failed=(order.proposal,) if ctx.store.get(FAILED, order.proposal) else (),
    )
    if refusal is None and same is not None:
        return False
    body = order.model_dump(mode="json")
    if refusal is None:
        log.info("%s of %s ordered, epoch %d", order.kind, order.definition, order.epoch)
        return ctx.store.add(ORDER, order.id, body, phase="new")
    # reported before it is kept: a crash in between reports it twice, never not at all
    if same is None or refusal is Refusal.ALTERED:
        log.warning("%s of %s is refused: %s", order.kind, order.definition, refusal)
        order_store.refuse(ctx, order, reason=str(refusal))
        ctx.store.add(ORDER, order.id, body, phase="refused")
    return False


def _drop_unnamed(ctx: OrderContext, named: frozenset[str]) -> None:
    """Drop swaps that are not named any more, once it is certain that no process has them."""
    unnamed = [
        kept.order
        for kept in latest(ctx.store).values()
        if kept.phase == "new" and kept.order.id not in named and not _is_own(ctx, kept.order)
    ]
    facts = slot_facts(ctx) if unnamed else None
    if facts is None:
        return  # an order that is not named does not start
    for order in unnamed:
        mine = [fact for fact in facts if fact.definition == order.definition]
        if all(max(fact.epoch, fact.newest_epoch) < order.epoch for fact in mine):
            log.info("%s of %s is not ordered any more", order.kind, order.definition)
            ctx.store.advance(ORDER, order.id, expect="new", to="superseded")


def _is_own(ctx: OrderContext, order: SwapOrder) -> bool:
    """Whether an order is a rollback that this node agent ordered itself."""
    harmed = ctx.store.get(FAILED, order.proposal) is not None
    return harmed or ctx.store.get(WITHDRAWN, order.id) is not None


def _withdraw(ctx: OrderContext, kept: StoredOrder, named: Sequence[SwapOrder]) -> None:
    """Order the rollback of one order; it does not blame the artifact."""
    order = kept.order
    back = swap_stage.order_rollback(
        order,
        epoch=fresh_epoch(ctx, after=order.epoch),
        to_original=not _may_restore(ctx, order, named),
    )
    log.warning("the control plane no longer names %s: rolling back", order.definition)
    ctx.report(order, Outcome.ROLLED_BACK, reason=REASON)
    with ctx.store.transaction():
        ctx.store.advance(ORDER, order.id, expect=kept.phase, to="undone")
        ctx.store.add(ORDER, back.id, back.model_dump(mode="json"), phase="new")
        ctx.store.add(WITHDRAWN, back.id, {}, phase="final")
    ctx.standing.unnamed.pop(order.id, None)
    ctx.telemetry.count("retuned_rollbacks_total", reason=REASON)


def _may_restore(ctx: OrderContext, order: SwapOrder, named: Sequence[SwapOrder]) -> bool:
    """Whether the rollback may restore the previous variant: it must be named itself."""
    if order.kind is SwapKind.ROLLBACK or order.previous is None:
        return False
    return order.previous not in harmful(ctx.store) and any(
        each.definition == order.definition and each.artifact == order.previous for each in named
    )
