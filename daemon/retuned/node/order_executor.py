"""Order executor: commits to the server what is ordered, whichever side crashed in between.

Stage 9 decides; this module delivers. A problem with one order delays no other order. A rollback
whose artifact is unavailable ends at the original.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from retuned.api.agent import Outcome
from retuned.errors import (
    CandidateError,
    HarnessError,
    MissingDependency,
    PartialCommit,
    Refused,
    TemporaryError,
    UnreadableInput,
)
from retuned.node import order_store
from retuned.node.order_checks import Refusal, may_begin
from retuned.node.order_context import FAILED, OPEN, ORDER, OrderContext
from retuned.node.order_store import (
    StoredOrder,
    about,
    bringer,
    fail,
    fresh_epoch,
    harmful,
    latest,
    slot_facts,
)
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SlotFacts, SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReport
from retuned.telemetry import spans

log = logging.getLogger(__name__)

_PASSES = 3
"""A refused order may be followed by a rollback, and that by the rollback to the original."""
_UNSUPPLIED = (Refused, UnreadableInput, HarnessError, MissingDependency, OSError)
"""Errors of a source that cannot supply an artifact; none blames the artifact."""


def carry_out(ctx: OrderContext, *, only: str | None = None) -> frozenset[str]:
    """Commit every order that the server lacks; return the ids of the orders that were delivered.

    Parameters
    ----------
    only
        Just this slot: a rollback waits for no other order.
    """
    delivered: set[str] = set()
    with ctx.lock:
        for number in range(_PASSES):
            facts = slot_facts(ctx) if latest(ctx.store) else None
            if facts is None:
                break
            if number == 0 and only is None:
                ctx.standing.stuck.clear()  # what is still refused is entered again below
            due = _due(ctx, facts, only)
            delivered |= {kept.order.id for kept in due}
            # a list: every order gets its turn, whatever becomes of those before it
            if not any([_drive(ctx, kept, facts) for kept in due]):
                break
    return frozenset(delivered)


def _due(ctx: OrderContext, facts: list[SlotFacts], only: str | None) -> list[StoredOrder]:
    """Return the orders to deliver, after closing committed ones and refusing overtaken ones."""
    for kept in list(latest(ctx.store).values()):
        if kept.phase not in OPEN or only not in (None, kept.order.definition):
            continue
        if any(swap_stage.is_carried_out(kept.order, fact) for fact in facts):
            _committed(ctx, kept.order, None)  # before a crash, or without an answer
        elif swap_stage.is_overtaken(kept.order, facts):
            _overtaken(ctx, kept)
    current = latest(ctx.store)
    wanted = [k.order for k in current.values() if only in (None, k.order.definition)]
    facts = [*facts, *swap_stage.unopened(wanted, facts, opens=ctx.artifacts.opens)]
    due = [current[order.definition] for order in swap_stage.reconcile(wanted, facts)]
    for id in ctx.standing.behind.keys() - {kept.order.id for kept in due}:
        if only is None:  # a process that caught up and falls behind again gets the full time
            del ctx.standing.behind[id]
    return [kept for kept in due if _may_begin(ctx, kept.order)]


def _may_begin(ctx: OrderContext, order: SwapOrder) -> bool:
    standing = ctx.standing
    return may_begin(
        order,
        named=order.id in standing.named,
        silent_s=ctx.clock.monotonic_s() - standing.named_at_s,
        fresh_s=ctx.settings.fresh_s,
    )


def _drive(ctx: OrderContext, kept: StoredOrder, facts: list[SlotFacts]) -> bool:
    """Deliver one order; True if a rollback was written that must be delivered now."""
    with ctx.spans.span("deliver", after=kept.traceparent, about=about(kept.order)):
        return _deliver(ctx, kept, facts)


def _deliver(ctx: OrderContext, kept: StoredOrder, facts: list[SlotFacts]) -> bool:
    order = kept.order
    if order.kind is SwapKind.ROLLBACK and order.artifact in harmful(ctx.store):
        detail = "the previous variant failed on this server"
        return _to_original(ctx, order, reason="failed-here", detail=detail)
    try:
        if order.artifact is not None:
            _prepare(ctx, order)
        sent = _sent(ctx, kept)
        if sent is None:
            return False
        kept = sent
        took_ns = ctx.swapper.commit(order)
    except CandidateError as error:
        return _refused(ctx, kept, error.reason, error.detail)
    except PartialCommit as error:
        return _partial(ctx, kept, facts, error)
    except TemporaryError as error:
        log.info("%s of %s waits: %s", order.kind, order.definition, error)
        order_store.wait(ctx, order, reason=_code(_cause(error)), detail=str(error))
        return _behind(ctx, kept, facts, error)
    except _UNSUPPLIED as error:
        return _not_supplied(ctx, order, error)
    _committed(ctx, order, took_ns)
    return False


def _sent(ctx: OrderContext, kept: StoredOrder) -> StoredOrder | None:
    """Record that a process may have the order from now on; None if its phase has changed."""
    if kept.phase != "new":
        return kept
    if not ctx.store.advance(ORDER, kept.order.id, expect="new", to="sent"):
        return None
    return replace(kept, phase="sent")


def _prepare(ctx: OrderContext, order: SwapOrder) -> None:
    folder = ctx.artifacts.folder_of(order)  # outside: its errors say nothing about a process
    try:
        ctx.swapper.prepare(order, artifact_dir=folder)
    except (CandidateError, TemporaryError) as error:
        if isinstance(error, CandidateError) and error.reason not in swap_stage.NOT_YET:
            raise
        if order.kind is SwapKind.SWAP:
            message = f"{order.definition} cannot be prepared yet: {error}"
            raise TemporaryError(message, delay_s=1.0) from error
        # a process that hangs must not delay the rollback of the others
        log.warning("rolling back without some process of %s: %s", order.definition, error)


def _cause(error: TemporaryError) -> str:
    """Return why an order waits: the server's own code if it gave one."""
    cause = error.__cause__
    while isinstance(cause, TemporaryError):  # raised again with the slot's name
        cause = cause.__cause__
    return cause.reason if isinstance(cause, CandidateError) else error.code


def _committed(ctx: OrderContext, order: SwapOrder, took_ns: int | None) -> None:
    """Record and report that the server committed an order; a second call reports nothing."""
    ctx.standing.behind.pop(order.id, None)
    ctx.standing.stuck.pop(order.definition, None)
    ctx.standing.waits.pop(order.definition, None)
    stored = ctx.store.get(ORDER, order.id)
    if stored is None or stored.phase not in OPEN:
        return
    # reported before it is closed: a crash in between reports it twice, never not at all
    ctx.report(order, Outcome.DONE, took_ns=took_ns)
    with ctx.store.transaction():
        ctx.store.advance(ORDER, order.id, expect=stored.phase, to="done")
        for phase in ("new", "sent", "done"):
            for other in ctx.store.list(ORDER, phase=phase):
                slot, epoch = other.body.get("definition"), other.body.get("epoch")
                if slot == order.definition and isinstance(epoch, int) and epoch < order.epoch:
                    ctx.store.advance(ORDER, other.id, expect=phase, to="superseded")
    ctx.telemetry.count("retuned_swaps_total", kind=str(order.kind))
    if took_ns is not None:
        ctx.telemetry.observe("retuned_swap_flip_seconds", took_ns / 1e9)
    log.info("%s of %s committed, epoch %d", order.kind, order.definition, order.epoch)


def _overtaken(ctx: OrderContext, kept: StoredOrder) -> None:
    """Refuse an order that a process would refuse; an own rollback gets a later epoch."""
    order = kept.order
    if ctx.store.get(FAILED, order.proposal) and order.kind is SwapKind.ROLLBACK:
        _replace(ctx, order, swap_stage.reissue(order, epoch=fresh_epoch(ctx)))
        return
    order_store.refuse(ctx, order, reason=str(Refusal.OUT_OF_EPOCH))
    ctx.store.advance(ORDER, order.id, expect=kept.phase, to="refused")


def _refused(ctx: OrderContext, kept: StoredOrder, reason: str, detail: str) -> bool:
    """Act on a refusal by the server; True if a rollback was written."""
    order = kept.order
    if reason == "not-prepared":  # a process started in between; the artifact is not at fault
        log.info("%s of %s waits: %s", order.kind, order.definition, detail)
        order_store.wait(ctx, order, reason=reason, detail=detail)
        return False
    if reason == "stale-epoch":
        if kept.phase in OPEN:
            _overtaken(ctx, kept)
        return kept.phase in OPEN and order.kind is SwapKind.ROLLBACK
    if order.kind is SwapKind.ROLLBACK:
        return _to_original(ctx, order, reason=reason, detail=detail)
    log.error("%s is refused: %s %s", order.definition, reason, detail)
    report = WatchReport(action=WatchAction.ROLLBACK, reason=reason, detail=detail[:1000])
    if kept.phase == "done" or (kept.phase == "sent" and _may_have(ctx, order)):
        return write_rollback(ctx, order, report, after=order.epoch)
    order_store.refuse(ctx, order, reason=_code(reason), detail=detail)
    with ctx.store.transaction():
        fail(ctx, order, report)
        ctx.store.advance(ORDER, order.id, expect=kept.phase, to="refused")
    return False


def _partial(
    ctx: OrderContext, kept: StoredOrder, facts: list[SlotFacts], error: PartialCommit
) -> bool:
    """Act on a commit that only some processes made; True if a rollback was written."""
    order = kept.order
    log.error("%s of %s is partial: %s", order.kind, order.definition, error)
    if kept.phase in OPEN and order.kind is SwapKind.SWAP and _refuses_mixed(ctx):
        return _all_back(ctx, order, reason=error.code, detail=str(error))
    if isinstance(error.cause, CandidateError):  # a refusal does not change with time
        return _refused(ctx, kept, error.cause.reason, error.cause.detail)
    return _behind(ctx, kept, facts, error)


def _not_supplied(ctx: OrderContext, order: SwapOrder, error: Exception) -> bool:
    """Act on an artifact that cannot be supplied: a swap waits, a rollback goes to the original."""
    code = error.code if isinstance(error, (Refused, UnreadableInput)) else "build-failed"
    if order.kind is SwapKind.ROLLBACK:
        return _to_original(ctx, order, reason=code, detail=str(error))
    log.error("%s waits for its artifact: %s", order.definition, error)
    order_store.wait(ctx, order, reason=_code(code), detail=str(error))
    return False


def _behind(
    ctx: OrderContext, kept: StoredOrder, facts: list[SlotFacts], error: TemporaryError
) -> bool:
    """Act on a process that lacks an order that others have; True if all roll back.

    A process that restarted or started later gets a while; until then it serves the original. If
    all processes restarted nothing is mixed, however long they take.
    """
    order, behind = kept.order, ctx.standing.behind
    if order.kind is SwapKind.ROLLBACK:
        # the artifact's source or a process does not answer: the original needs neither
        stuck = order.artifact is not None and not any(
            swap_stage.is_carried_out(order, fact) for fact in facts
        )
        return stuck and _to_original(ctx, order, reason=error.code, detail=str(error))
    if kept.phase in OPEN or not _is_mixed(ctx, order):
        behind.pop(order.id, None)
        return False
    now_s = ctx.clock.monotonic_s()
    since_s = behind.setdefault(order.id, now_s)
    if not swap_stage.must_go_back(
        ctx.settings.mixed_epochs,
        was_complete=True,
        behind_s=now_s - since_s,
        catch_up_s=ctx.settings.catch_up_s,
    ):
        return False
    return _all_back(ctx, order, reason="rank-behind", detail=str(error))


def _refuses_mixed(ctx: OrderContext) -> bool:
    return swap_stage.must_go_back(
        ctx.settings.mixed_epochs, was_complete=False, behind_s=0.0, catch_up_s=0.0
    )


def _may_have(ctx: OrderContext, order: SwapOrder) -> bool:
    """Whether a process may have an order that was sent; a silent server may."""
    facts = slot_facts(ctx)
    return facts is None or _has(facts, order)


def _is_mixed(ctx: OrderContext, order: SwapOrder) -> bool:
    """Whether some process is known to have an order that another lacks."""
    return _has(slot_facts(ctx) or (), order)


def _has(facts: list[SlotFacts] | tuple[()], order: SwapOrder) -> bool:
    mine = [fact for fact in facts if fact.definition == order.definition]
    return any(max(fact.epoch, fact.newest_epoch) >= order.epoch for fact in mine)


def _all_back(ctx: OrderContext, order: SwapOrder, *, reason: str, detail: str) -> bool:
    report = WatchReport(action=WatchAction.ROLLBACK, reason=reason, detail=detail[:1000])
    return write_rollback(ctx, order, report, after=order.epoch)


def write_rollback(ctx: OrderContext, order: SwapOrder, report: WatchReport, *, after: int) -> bool:
    """Order the rollback of an order that does harm, and report it; it is delivered next.

    It needs neither a policy nor the control plane. Repeating it does nothing.

    Parameters
    ----------
    order
        In force in all processes or in some.
    report
        Why.
    after
        Latest epoch that the server is known to have.
    """
    with ctx.lock:
        stored = ctx.store.get(ORDER, order.id)
        if stored is None or stored.phase not in ("new", "sent", "done"):
            return False
        attributes = about(order) | {"reason": _code(report.reason)}
        parent = "" if spans.current() else stored.traceparent
        with ctx.spans.span("rollback", after=parent, links=[stored.traceparent], about=attributes):
            _write_rollback(ctx, order, report, phase=stored.phase, after=after)
    return True


def _write_rollback(
    ctx: OrderContext, order: SwapOrder, report: WatchReport, *, phase: str, after: int
) -> None:
    concerned = bringer(ctx.store, order)
    to_original = order.kind is SwapKind.ROLLBACK or concerned.previous in harmful(ctx.store)
    epoch = fresh_epoch(ctx, after=max(after, order.epoch))
    back = swap_stage.order_rollback(concerned, epoch=epoch, to_original=to_original)
    log.error("rolling back %s: %s %s", order.definition, report.reason, report.detail)
    _report_harm(ctx, concerned, report)
    with ctx.store.transaction():
        fail(ctx, concerned, report)
        ctx.store.advance(ORDER, order.id, expect=phase, to="undone")
        ctx.store.add(ORDER, back.id, back.model_dump(mode="json"), phase="new")
    ctx.standing.reports[order.definition] = (concerned.proposal, report)
    ctx.telemetry.count("retuned_rollbacks_total", reason=_code(report.reason))


def _report_harm(ctx: OrderContext, order: SwapOrder, report: WatchReport) -> None:
    """Report the harm; a full disk must not prevent the rollback."""
    try:
        reason = _code(report.reason)
        ctx.report(order, Outcome.ROLLED_BACK, reason=reason, detail=report.detail)
    except TemporaryError as error:
        log.error("the control plane learns of it only from the slots: %s", error)


def _to_original(ctx: OrderContext, order: SwapOrder, *, reason: str, detail: str) -> bool:
    """Order the original instead of a variant that is unavailable; it needs no artifact."""
    if order.artifact is None:
        log.error("the server refuses the original of %s: %s %s", order.definition, reason, detail)
        ctx.telemetry.count("retuned_rollbacks_failed_total", reason=_code(reason))
        ctx.standing.stuck[order.definition] = order.id
        order_store.wait(ctx, order, reason=_code(reason), detail=detail, final=True)
        return False  # delivered again until it is committed
    log.error("no rollback of %s to %s: %s", order.definition, order.artifact, detail)
    return _replace(ctx, order, swap_stage.to_original(order, epoch=fresh_epoch(ctx)))


def _replace(ctx: OrderContext, order: SwapOrder, by: SwapOrder) -> bool:
    with ctx.store.transaction():
        for phase in ("new", "sent", "done"):
            ctx.store.advance(ORDER, order.id, expect=phase, to="superseded")
        return ctx.store.add(ORDER, by.id, by.model_dump(mode="json"), phase="new")


def _code(reason: str) -> str:
    """Return a reason as a stable code; a server's own text is not one."""
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in reason.lower())
    return "-".join(part for part in kept.split("-") if part)[:64].strip("-")
