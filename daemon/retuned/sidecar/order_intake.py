"""What the operator says this pod is to have, taken or refused."""

from __future__ import annotations

import logging

from retuned.api.agent import Orders
from retuned.errors import Refused
from retuned.sidecar import order_store, rollback
from retuned.sidecar.context import Context, RecordKind
from retuned.sidecar.order_checks import Refusal, judge_order
from retuned.sidecar.order_store import about, kept_order, latest, slot_facts
from retuned.stages.swap import SwapOrder

log = logging.getLogger(__name__)

NO_TARGET = "no-target"
"""The operator's code for a pod that no target selects."""


def listen(ctx: Context, *, wait_s: float) -> bool:
    """Ask for orders and take them; True if something is to be done.

    Raises
    ------
    TemporaryError, Refused, UnreadableInput
        As `Operator.orders`; where no target selects this pod any more, nobody stands behind what
        is in force here.
    """
    try:
        said = ctx.operator.orders(after=ctx.standing.revision, wait_s=wait_s)
    except Refused as error:
        if error.code == NO_TARGET:
            with ctx.lock:
                rollback.look(ctx, ())
            ctx.standing.named, ctx.standing.revision = frozenset(), 0
        raise
    with ctx.lock:
        return take(ctx, said)


def take(ctx: Context, said: Orders) -> bool:
    """Take a set of orders; True if one of them is new here. Taking it again changes nothing."""
    fresh = []
    for order in said.orders:
        with ctx.spans.span("order", after=said.traces.get(order.id, ""), about=about(order)):
            fresh.append(_take(ctx, order))
    named = frozenset(order.id for order in said.orders)
    _drop_unnamed(ctx, named)
    gone_back = rollback.look(ctx, said.orders)
    # only now: a set that was taken by half is asked for again
    ctx.standing.named, ctx.standing.named_at_s = named, ctx.clock.monotonic_s()
    ctx.standing.revision = said.revision
    return any(fresh) or gone_back


def _take(ctx: Context, order: SwapOrder) -> bool:
    same = kept_order(ctx, order.id)
    newest = latest(ctx).get(order.definition)
    refusal = judge_order(
        order,
        target=ctx.target,
        same=same.order if same else None,
        newest=newest.order if newest else None,
        failed=(order.proposal,) if ctx.store.get(RecordKind.FAILED, order.proposal) else (),
    )
    if refusal is None and same is not None:
        return False
    body = order.model_dump(mode="json")
    if refusal is None:
        log.info("%s of %s ordered, epoch %d", order.kind, order.definition, order.epoch)
        return ctx.store.add(RecordKind.ORDER, order.id, body, phase="new")
    # told before it is kept: a crash in between tells it twice, and never not at all
    if same is None or refusal is Refusal.ALTERED:
        log.warning("%s of %s is refused: %s", order.kind, order.definition, refusal)
        order_store.refuse(ctx, order, reason=str(refusal))
        ctx.store.add(RecordKind.ORDER, order.id, body, phase="refused")
    return False


def _drop_unnamed(ctx: Context, named: frozenset[str]) -> None:
    """Let go of swaps that the operator wants no more, once it is sure that no process has them."""
    unnamed = [
        kept.order
        for kept in latest(ctx).values()
        if kept.phase == "new" and kept.order.id not in named and not _is_ours(ctx, kept.order)
    ]
    facts = slot_facts(ctx) if unnamed else None
    if facts is None:
        return  # what is not named is not begun either
    for order in unnamed:
        mine = [fact for fact in facts if fact.definition == order.definition]
        if all(max(fact.epoch, fact.newest_epoch) < order.epoch for fact in mine):
            log.info("%s of %s is ordered no more", order.kind, order.definition)
            ctx.store.advance(RecordKind.ORDER, order.id, expect="new", to="superseded")


def _is_ours(ctx: Context, order: SwapOrder) -> bool:
    """Whether an order is a way back from here: those are the pod's own."""
    harmed = ctx.store.get(RecordKind.FAILED, order.proposal) is not None
    return harmed or ctx.store.get(RecordKind.WITHDRAWN, order.id) is not None
