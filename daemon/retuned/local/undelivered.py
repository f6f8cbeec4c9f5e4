"""Step 9, where it does not arrive: orders that were refused, or that not every process has.

Each function says whether another order was written in place of this one. A way back does not end
before it has arrived: where its artifact cannot be had it leads to the original, and a way to the
original is tried until the server takes it.
"""

from __future__ import annotations

import logging
from typing import Any

from retuned.errors import CandidateError, PartialCommit, RetunedError
from retuned.local.context import Context, RecordKind
from retuned.local.ordered import IN_PLACE, OPEN, StoredOrder, fresh_epoch, say, server_facts
from retuned.local.returning import order_back
from retuned.observing.seen import facts_of
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder

log = logging.getLogger(__name__)


def refused(ctx: Context, order: SwapOrder, *, phase: str, error: CandidateError) -> bool:
    """Act on a refusal; True if another order was written in place of the refused one."""
    if error.reason == "not-prepared":  # a process that came in between, no fault of the artifact
        log.info("%s of %s waits: %s", order.kind, order.definition, error)
        return False
    if error.reason == "stale-epoch":
        return reissue(ctx, StoredOrder(order=order, phase=phase))
    if order.kind is SwapKind.ROLLBACK:
        return _lead_to_original(ctx, order, phase=phase, error=error)
    log.error("server refused %s: %s", order.definition, error)
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if stored is not None and (phase == "done" or (phase == "prepared" and _landed(ctx, order))):
        # some process runs it, another does not take it: all go back
        return stored.phase in (*IN_PLACE, "swapping") and order_back(
            ctx, stored, reason=error.reason, detail=error.detail, who="retuned"
        )
    with ctx.store.transaction():
        if ctx.store.advance(RecordKind.ORDER, order.id, expect=phase, to="refused"):
            ctx.store.advance(RecordKind.PROPOSAL, order.proposal, expect="swapping", to="refused")
            say(ctx, order.proposal, "refused", reason=error.reason, detail=error.detail)
    return False


def partial(ctx: Context, order: SwapOrder, *, phase: str, error: PartialCommit) -> bool:
    """Act on ranks that differ; True if the way back was written for all of them.

    A way back is told until everybody has it: it undoes nothing when it is partial.
    """
    log.error("%s of %s is partial: %s", order.kind, order.definition, error)
    if order.kind is SwapKind.SWAP and phase in OPEN and _refuses_mixed(ctx):
        return _all_back(ctx, order, reason=error.code, detail=str(error))
    if isinstance(error.cause, CandidateError):
        return refused(ctx, order, phase=phase, error=error.cause)
    return behind(ctx, order, phase=phase, error=error)


def behind(ctx: Context, order: SwapOrder, *, phase: str, error: Exception) -> bool:
    """Act on a process that does not follow an order that others have; True if all go back.

    One that was restarted, or came late, gets a while: until then it serves the original. Where all
    were restarted nothing is mixed, however long they take.
    """
    if phase in OPEN or order.kind is SwapKind.ROLLBACK or not _somebody_has(ctx, order):
        ctx.behind.pop(order.id, None)
        return False
    now_s = ctx.clock.monotonic_s()
    since_s = ctx.behind.get(order.id)
    if since_s is None:
        since_s = ctx.behind[order.id] = now_s
        detail: dict[str, Any] = {"epoch": order.epoch, "slot": order.definition}
        detail["detail"] = str(error)[:2000]
        say(ctx, order.proposal, "rank-behind", **detail)
    if not swap_stage.must_go_back(
        ctx.settings.mixed_epochs,
        was_complete=True,
        behind_s=now_s - since_s,
        catch_up_s=ctx.settings.catch_up_s,
    ):
        return False
    return _all_back(ctx, order, reason="rank-behind", detail=str(error))


def not_built(ctx: Context, order: SwapOrder, *, phase: str, error: Exception) -> bool:
    """Our machine failed, which says nothing about the artifact: a swap waits, a way back goes."""
    if order.kind is SwapKind.ROLLBACK:
        return _lead_to_original(ctx, order, phase=phase, error=error)
    log.error("%s cannot be built here, its swap waits: %s", order.definition, error)
    return False


def _all_back(ctx: Context, order: SwapOrder, *, reason: str, detail: str) -> bool:
    """Write the way back of a swap that some process has; it is carried out in this very look."""
    ctx.behind.pop(order.id, None)
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if stored is None or stored.phase not in (*IN_PLACE, "swapping"):
        return False
    return order_back(
        ctx, stored, reason=reason, detail=detail[:2000], who="retuned", after=order.epoch
    )


def _somebody_has(ctx: Context, order: SwapOrder) -> bool:
    mine = [fact for fact in server_facts(ctx) or () if fact.definition == order.definition]
    return any(max(fact.epoch, fact.newest_epoch) >= order.epoch for fact in mine)


def _refuses_mixed(ctx: Context) -> bool:
    return swap_stage.must_go_back(
        ctx.settings.mixed_epochs, was_complete=False, behind_s=0.0, catch_up_s=0.0
    )


def _landed(ctx: Context, order: SwapOrder) -> bool:
    """Whether a process may have carried an order out; yes where nobody can say."""
    try:
        facts = [facts_of(slot) for slot in ctx.swapper.slots()]
    except RetunedError:
        return True
    mine = [fact for fact in facts if fact.definition == order.definition]
    return any(max(fact.epoch, fact.newest_epoch) >= order.epoch for fact in mine)


def _lead_to_original(ctx: Context, order: SwapOrder, *, phase: str, error: Exception) -> bool:
    """Order the original where the way back is barred; that needs neither artifact nor prepare."""
    reason = error.reason if isinstance(error, CandidateError) else "build-failed"
    if order.artifact is None:
        _say_that_it_failed(ctx, order, reason=reason, error=error)
        return False
    log.error("no way back of %s to %s: %s", order.definition, order.artifact, error)
    back = swap_stage.to_original(order, epoch=fresh_epoch(ctx))
    with ctx.store.transaction():
        to = "refused" if phase in OPEN else phase
        if not ctx.store.advance(RecordKind.ORDER, order.id, expect=phase, to=to):
            return False
        ctx.store.add(RecordKind.ORDER, back.id, back.model_dump(mode="json"), phase="new")
        say(ctx, order.proposal, "refused", reason=reason, detail=str(error)[:2000])
    return True


def _say_that_it_failed(ctx: Context, order: SwapOrder, *, reason: str, error: Exception) -> None:
    """Tell once that even the original was refused; its order stays and is told again."""
    with ctx.store.transaction():
        if ctx.store.advance(
            RecordKind.PROPOSAL, order.proposal, expect="rolling-back", to="rollback-failed"
        ):
            log.error("server refused the original of %s, trying again: %s", order.id, error)
            say(ctx, order.proposal, "rollback-failed", reason=reason, detail=str(error)[:2000])
            ctx.telemetry.count("retuned_rollbacks_failed_total", reason=reason)


def reissue(ctx: Context, kept: StoredOrder) -> bool:
    """Write an order again under an epoch that the server takes: it has a later one than ours."""
    again = swap_stage.reissue(kept.order, epoch=fresh_epoch(ctx))
    with ctx.store.transaction():
        to = "superseded" if kept.phase in OPEN else kept.phase
        if not ctx.store.advance(RecordKind.ORDER, kept.order.id, expect=kept.phase, to=to):
            return False
        ctx.store.add(RecordKind.ORDER, again.id, again.model_dump(mode="json"), phase="new")
    log.warning("%s: epoch %d is again %d", again.definition, kept.order.epoch, again.epoch)
    return True
