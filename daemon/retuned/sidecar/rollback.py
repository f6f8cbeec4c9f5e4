"""Going back from what nobody stands behind any more.

A target or a proposal that is deleted leaves nobody who could order the way back, and no finalizer
holds it: who uninstalls the operator, or deletes a namespace, must not wait for it. So a pod goes
back by itself where the operator answers, and its answers have not named what is in force for a
while. An operator that does not answer says nothing: then everything stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retuned.api.agent import Outcome
from retuned.sidecar.context import Context, RecordKind
from retuned.sidecar.order_checks import stands_behind
from retuned.sidecar.order_store import StoredOrder, about, fresh_epoch, harmful, latest, tell
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder

log = logging.getLogger(__name__)

REASON = "withdrawn"
"""Reason of such a way back, stable code."""


def look(ctx: Context, named: Sequence[SwapOrder]) -> bool:
    """Write ways back from what has stood in no answer for too long; True if there are any.

    Parameters
    ----------
    named
        All that the operator says now this pod is to have.
    """
    now_s, unnamed = ctx.clock.monotonic_s(), ctx.standing.unnamed
    alone = [kept for kept in latest(ctx).values() if not stands_behind(kept.order, named)]
    for id in unnamed.keys() - {kept.order.id for kept in alone}:
        del unnamed[id]
    due = [
        kept
        for kept in alone
        if now_s - unnamed.setdefault(kept.order.id, now_s) >= ctx.settings.withdrawn_s
    ]
    for kept in due:
        said = about(kept.order) | {"reason": REASON}
        with ctx.spans.span("rollback", after=kept.traceparent, about=said):
            _write_way_back(ctx, kept, named)
    return bool(due)


def _write_way_back(ctx: Context, kept: StoredOrder, named: Sequence[SwapOrder]) -> None:
    """Write the way back of an order; unlike one for harm it says nothing against the artifact."""
    order = kept.order
    back = swap_stage.order_rollback(
        order,
        epoch=fresh_epoch(ctx, after=order.epoch),
        to_original=not _may_return(ctx, order, named),
    )
    log.warning("nobody stands behind %s any more: going back", order.definition)
    tell(ctx, order, Outcome.ROLLED_BACK, reason=REASON)
    with ctx.store.transaction():
        ctx.store.advance(RecordKind.ORDER, order.id, expect=kept.phase, to="undone")
        ctx.store.add(RecordKind.ORDER, back.id, back.model_dump(mode="json"), phase="new")
        ctx.store.add(RecordKind.WITHDRAWN, back.id, {}, phase="final")
    ctx.standing.unnamed.pop(order.id, None)
    ctx.telemetry.count("retuned_rollbacks_total", reason=REASON)


def _may_return(ctx: Context, order: SwapOrder, named: Sequence[SwapOrder]) -> bool:
    """Whether what was there before may come back: somebody must stand behind that."""
    if order.kind is SwapKind.ROLLBACK or order.previous is None:
        return False
    return order.previous not in harmful(ctx) and any(
        each.definition == order.definition and each.artifact == order.previous for each in named
    )
