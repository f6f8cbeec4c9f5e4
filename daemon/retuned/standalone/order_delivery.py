"""Step 9, the deeds: bring the server to what is ordered, whichever side died in between.

Each order is carried out for itself: what goes wrong with one never keeps another back.

Step 9, where it does not arrive: orders that were refused, or that not every process has.

Step 9, how it ends: what is written once the server has carried an order out.
"""

from __future__ import annotations

import logging
from typing import Any

from retuned import catalog
from retuned.errors import (
    CandidateError,
    HarnessError,
    MissingDependency,
    PartialCommit,
    RetunedError,
    TemporaryError,
    UnreadableInput,
)
from retuned.node.history import facts_of
from retuned.ports import Stored
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.standalone import tuned_files
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.evidence import UNKNOWN, check_before_load
from retuned.standalone.findings import found_solution
from retuned.standalone.orders import (
    IN_PLACE,
    OPEN,
    StoredOrder,
    fresh_epoch,
    in_phases,
    latest,
    owner,
    say,
    server_facts,
)
from retuned.standalone.rollback import order_back
from retuned.store.artifact_folder import sign_artifact
from retuned.telemetry.spans import Value

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


_NOT_YET = swap_stage.NOT_YET | {UNKNOWN}
"""Refusals to prepare that say nothing of the artifact: the order waits, and is told again.
`UNKNOWN`: no launch has shown yet what a process runs on."""

_PASSES = 3
"""An order that is refused may be followed by another, and that by the way to the original."""


def drive_orders(ctx: Context, *, only: str | None = None) -> frozenset[str]:
    """Carry out every order that the server has not, and return the ids of those it was told.

    Parameters
    ----------
    only
        Just this slot: a way back waits for no other order.
    """
    told: set[str] = set()
    for _ in range(_PASSES):
        due = _due(ctx, only)
        if only is None:  # who has caught up and falls behind again has its time anew
            for id in ctx.behind.keys() - {kept.order.id for kept in due}:
                del ctx.behind[id]
        told |= {kept.order.id for kept in due}
        # a list: every order gets its turn, whatever becomes of those before it
        if not any([_drive(ctx, kept) for kept in due]):
            break
    return frozenset(told)


def roll_back(
    ctx: Context,
    proposal: Stored,
    *,
    reason: str,
    detail: str,
    who: str,
    after: int = 0,
    quarantine: bool = False,
) -> None:
    """Order the way back and carry it out at once; see `order_back`. Safe to call again."""
    if order_back(
        ctx,
        proposal,
        reason=reason,
        detail=detail,
        who=who,
        after=after,
        quarantine=quarantine,
    ):
        drive_orders(ctx, only=str(proposal.body["definition"]))


def _due(ctx: Context, only: str | None) -> list[StoredOrder]:
    """Return the orders to tell the server, with a later epoch where it would refuse theirs."""
    wanted = [kept for kept in latest(ctx).values() if only in (None, kept.order.definition)]
    facts = server_facts(ctx) if wanted else None
    if facts is None:
        return []
    for kept in wanted:
        if kept.phase in OPEN and swap_stage.is_overtaken(kept.order, facts):
            reissue(ctx, kept)
    current = latest(ctx)
    mine = [kept.order for kept in current.values() if only in (None, kept.order.definition)]
    facts += swap_stage.unopened(mine, facts, opens=_opens)
    return [current[order.definition] for order in swap_stage.reconcile(mine, facts)]


def _opens(order: SwapOrder) -> bool:
    own = catalog.own_definition(order.definition)
    return own is not None and own.lifted is not None


def _drive(ctx: Context, kept: StoredOrder) -> bool:
    """Tell the server one order; True if another one was written in its place."""
    order = kept.order
    about: dict[str, Value] = {
        "proposal": order.proposal,
        "kernel": order.definition,
        "kind": str(order.kind),
        "epoch": order.epoch,
    }
    with ctx.spans.span("deliver", after=kept.traceparent, about=about):
        return _tell(ctx, order, phase=kept.phase)


def _tell(ctx: Context, order: SwapOrder, *, phase: str) -> bool:
    try:
        if order.artifact is not None:  # after a restart of the server the way back needs it too
            _prepare(ctx, order)
        if phase == "new":  # from here on a process may have it, whatever we hear
            if not ctx.store.advance(RecordKind.ORDER, order.id, expect="new", to="prepared"):
                return False
            phase = "prepared"
        took_ns = ctx.swapper.commit(order)
    except CandidateError as error:
        return refused(ctx, order, phase=phase, error=error)
    except PartialCommit as error:
        return partial(ctx, order, phase=phase, error=error)
    except TemporaryError as error:
        log.info("%s of %s waits: %s", order.kind, order.definition, error)
        return behind(ctx, order, phase=phase, error=error)
    except (HarnessError, MissingDependency, UnreadableInput, OSError) as error:
        return not_built(ctx, order, phase=phase, error=error)
    close_order(ctx, order, took_ns)
    return False


def _prepare(ctx: Context, order: SwapOrder) -> None:
    assert order.artifact is not None, "the original needs no prepare"
    solution = found_solution(ctx.store, order.artifact)
    if solution is None:
        raise CandidateError("artifact-missing", detail=f"{order.artifact} is not in the store")
    try:
        if tuned_files.is_change(ctx, order.proposal):
            tuned_files.prepare(ctx, order)
            return
        if order.kind is SwapKind.SWAP:
            check_before_load(ctx, order)
        folder = ctx.bench.build(solution)
        sign_artifact(
            folder,
            notary=ctx.notary,
            artifact=order.artifact,
            definition=order.definition,
            target=order.target,
        )
        ctx.swapper.prepare(order, artifact_dir=folder)
    except (CandidateError, TemporaryError) as error:
        if isinstance(error, CandidateError) and error.reason not in _NOT_YET:
            raise
        if order.kind is SwapKind.SWAP:
            message = f"{order.definition} cannot be prepared yet: {error}"
            raise TemporaryError(message, delay_s=1.0) from error
        # one process that hangs must not keep those back that can go
        log.warning("going back without some process of %s: %s", order.definition, error)
