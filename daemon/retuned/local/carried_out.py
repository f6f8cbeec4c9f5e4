"""Step 9, how it ends: what is written once the server has carried an order out."""

from __future__ import annotations

import logging
from typing import Any

from retuned.local.context import Context, RecordKind
from retuned.local.ordered import IN_PLACE, OPEN, in_phases, latest, owner, say, server_facts
from retuned.ports import Stored
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder

log = logging.getLogger(__name__)

_GOING_BACK = ("rolling-back", "rollback-failed")


def close_carried_out(ctx: Context) -> None:
    """Close orders that the server carried out just before we died, or without telling us."""
    waiting = [kept for kept in latest(ctx).values() if kept.phase in OPEN]
    if not waiting:
        return
    facts = server_facts(ctx) or []
    for kept in waiting:
        if any(swap_stage.is_carried_out(kept.order, fact) for fact in facts):
            close_order(ctx, kept.order, None)


def close_order(ctx: Context, order: SwapOrder, took_ns: int | None) -> None:
    """Write that the server has carried an order out; the second time nothing is written."""
    ctx.behind.pop(order.id, None)
    with ctx.store.transaction():
        if not any(
            ctx.store.advance(RecordKind.ORDER, order.id, expect=phase, to="done") for phase in OPEN
        ):
            return
        detail: dict[str, Any] = {"epoch": order.epoch, "slot": order.definition}
        detail["took_ns"] = took_ns
        if order.kind is SwapKind.SWAP:
            ctx.store.advance(RecordKind.PROPOSAL, order.proposal, expect="swapping", to="watching")
            say(ctx, order.proposal, "swapped", **detail)
            _displace(ctx, order, to="superseded")
        else:
            for gone in _of_slot(ctx, order, _GOING_BACK):
                ctx.store.advance(RecordKind.PROPOSAL, gone.id, expect=gone.phase, to="rolled-back")
                say(ctx, gone.id, "rolled-back", **detail)
            _displace(ctx, order, to="rolled-back" if order.artifact is None else "superseded")
            _restore(ctx, order)
    ctx.telemetry.count("retuned_swaps_total", kind=str(order.kind))
    if took_ns is not None:
        ctx.telemetry.observe("retuned_swap_flip_seconds", took_ns / 1e9)
    log.info("%s of %s carried out, epoch %d", order.kind, order.definition, order.epoch)


def _displace(ctx: Context, order: SwapOrder, *, to: str) -> None:
    """End what was in force in the slot until now."""
    comes = owner(ctx, order)
    for stored in _of_slot(ctx, order, IN_PLACE):
        if stored.id != comes:
            ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect=stored.phase, to=to)
            say(ctx, stored.id, to, by=order.proposal)


def _restore(ctx: Context, order: SwapOrder) -> None:
    """Watch again what a rollback brings back: a later server may not be the one it ran in."""
    comes = owner(ctx, order)
    stored = ctx.store.get(RecordKind.PROPOSAL, comes) if comes is not None else None
    if stored is not None and stored.phase in ("superseded", "promoted"):
        ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect=stored.phase, to="watching")
        say(ctx, stored.id, "restored", epoch=order.epoch, slot=order.definition)


def _of_slot(ctx: Context, order: SwapOrder, phases: tuple[str, ...]) -> list[Stored]:
    return [s for s in in_phases(ctx, phases) if s.body["definition"] == order.definition]
