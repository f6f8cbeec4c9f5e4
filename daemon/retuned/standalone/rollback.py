"""Step 9, the ways back: what is called off before a server knew, and what is taken back after.

Never gated. What did harm is kept from coming again for a while.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from retuned.errors import RetunedError, UnreadableInput
from retuned.ports import Stored
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapOrder
from retuned.standalone import gate_requests
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.orders import OPEN, fresh_epoch, orders, say, swap_order_of
from retuned.telemetry import spans

log = logging.getLogger(__name__)


def call_off(
    ctx: Context, proposal: Stored, *, to: str, reason: str, detail: str, who: str = "retuned"
) -> None:
    """Withdraw a swap that no process was told to commit; take back one that some may have."""
    kept = swap_order_of(ctx, proposal.id)
    if kept is None or kept.phase != "new":
        order_back(ctx, proposal, reason=reason, detail=detail, who=who)
        return
    with ctx.store.transaction():
        if ctx.store.advance(RecordKind.ORDER, kept.order.id, expect="new", to="withdrawn"):
            ctx.store.advance(RecordKind.PROPOSAL, proposal.id, expect=proposal.phase, to=to)
            if to == "expired":
                lapse(ctx, proposal)
            what = "withdrawn" if to == "awaiting" else to
            say(ctx, proposal.id, what=what, who=who, reason=reason, detail=detail)


def lapse(ctx: Context, proposal: Stored) -> None:
    """Let a win be proposed again later: its proposal expired before anybody decided."""
    experiment = str(proposal.body.get("experiment", ""))
    ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="proposed", to="lapsed")


def order_back(
    ctx: Context,
    proposal: Stored,
    *,
    reason: str,
    detail: str,
    who: str,
    after: int = 0,
    quarantine: bool = False,
) -> bool:
    """Write the way back of a swap; False if its proposal has moved on. Never gated.

    Parameters
    ----------
    after
        Latest epoch that the server is known to have; 0 asks it.
    quarantine
        Whether the artifact did harm, and may not be proposed again for a while.

    Raises
    ------
    UnreadableInput
        ``order-missing``.
    """
    kept = swap_order_of(ctx, proposal.id)
    if kept is None:
        raise UnreadableInput(
            "order-missing",
            where=f"proposal {proposal.id}",
            message="is in force but has no order that can be read, so nobody knows what it "
            "replaced; restart the server to have its original back",
        )
    going = kept.order  # the order alone: a proposal that nobody understands goes back too
    about = {"proposal": proposal.id, "kernel": going.definition, "reason": reason}
    # within a watch, a request or a delivery it is a part of that
    after_that = "" if spans.current() else proposal.traceparent
    with ctx.spans.span("rollback", after=after_that, links=[kept.traceparent], about=about):
        return _write_back(
            ctx,
            proposal,
            going,
            reason=reason,
            detail=detail,
            who=who,
            after=after,
            quarantine=quarantine,
        )


def _write_back(
    ctx: Context,
    proposal: Stored,
    going: SwapOrder,
    *,
    reason: str,
    detail: str,
    who: str,
    after: int,
    quarantine: bool,
) -> bool:
    log.warning("rolling back %s: %s %s", going.definition, reason, detail)
    epoch = fresh_epoch(ctx, after=after)
    with ctx.store.transaction():
        phase = proposal.phase
        if not ctx.store.advance(RecordKind.PROPOSAL, proposal.id, expect=phase, to="rolling-back"):
            return False
        _drop_open(ctx, going)
        back = swap_stage.order_rollback(
            going, epoch=epoch, to_original=going.previous in quarantined(ctx)
        )
        ctx.store.add(RecordKind.ORDER, back.id, back.model_dump(mode="json"), phase="new")
        if quarantine:
            _quarantine(ctx, going, reason)
        say(ctx, proposal.id, "alarm", who, reason=reason, detail=detail, slot=going.definition)
    ctx.telemetry.count("retuned_rollbacks_total", reason=reason)
    return True


def _drop_open(ctx: Context, going: SwapOrder) -> None:
    """End what is under way in the slot of a swap that goes back: its way back comes last."""
    for kept in orders(ctx):
        if kept.order.definition != going.definition or kept.phase not in OPEN:
            continue
        ctx.store.advance(RecordKind.ORDER, kept.order.id, expect=kept.phase, to="superseded")
        other = kept.order.proposal
        if other != going.proposal and ctx.store.advance(
            RecordKind.PROPOSAL, other, expect="swapping", to="superseded"
        ):
            say(ctx, other, what="superseded", by=going.proposal)


def quarantined(ctx: Context) -> frozenset[str]:
    """Return the artifacts that did harm not long ago."""
    now = ctx.clock.now()
    return frozenset(
        stored.id
        for stored in ctx.store.list(RecordKind.QUARANTINE)
        if datetime.fromisoformat(str(stored.body["until"])) > now
    )


def _quarantine(ctx: Context, going: SwapOrder, reason: str) -> None:
    """Keep an artifact that did harm from being proposed, as long as its policy says."""
    until = ctx.clock.now() + _quarantine_of(ctx, going.definition)
    assert going.artifact is not None, "a swap puts something in force"
    body, artifact = {"until": until.isoformat(), "reason": reason}, going.artifact
    if not ctx.store.add(RecordKind.QUARANTINE, artifact, body, phase="current"):
        ctx.store.advance(
            RecordKind.QUARANTINE, artifact, expect="current", to="current", body=body
        )


def _quarantine_of(ctx: Context, definition: str) -> timedelta:
    """Return what the policy says, else the settings: a way back waits for no policy file."""
    try:
        limits = gate_requests.policy_limits(ctx, definition)
    except (RetunedError, OSError) as error:
        log.warning("no policy to say how long harm is remembered: %s", error)
        limits = None
    return limits.quarantine if limits is not None else ctx.settings.quarantine
