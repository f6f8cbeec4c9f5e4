"""Step 9 in a pod: bring the server to what is ordered, whichever side died in between.

The decisions are stage 9's; what is told, and in which order, is here. What goes wrong with one
order keeps no other back. A way back ends at the original where its artifact cannot be had.
"""

from __future__ import annotations

import logging

from retuned.api.agent import Outcome
from retuned.errors import CandidateError, PartialCommit, Refused, TemporaryError, UnreadableInput
from retuned.sidecar import metrics, order_store
from retuned.sidecar.context import OPEN, Context, RecordKind
from retuned.sidecar.order_checks import Refusal, may_begin
from retuned.sidecar.order_store import (
    StoredOrder,
    about,
    fail,
    fresh_epoch,
    harmful,
    latest,
    slot_facts,
    tell,
)
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SlotFacts, SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReport
from retuned.telemetry import spans

log = logging.getLogger(__name__)

_PASSES = 3
"""An order that is refused may be followed by a way back, and that by the way to the original."""


def carry_out(ctx: Context, *, only: str | None = None) -> frozenset[str]:
    """Carry out what the server has not; return the orders that it was told.

    Parameters
    ----------
    only
        Just this slot: a way back waits for no other order.
    """
    told: set[str] = set()
    with ctx.lock:
        for number in range(_PASSES):
            facts = slot_facts(ctx) if latest(ctx) else None
            if facts is None:
                break
            if number == 0 and only is None:
                ctx.standing.stuck.clear()  # what is still refused is so again in a moment
            due = _due(ctx, facts, only)
            told |= {kept.order.id for kept in due}
            if not any([_drive(ctx, kept, facts) for kept in due]):
                break
        metrics.stuck(ctx)
    return frozenset(told)


def _due(ctx: Context, facts: list[SlotFacts], only: str | None) -> list[StoredOrder]:
    """Return what is to be told, after closing what is done and refusing what came too late."""
    for kept in list(latest(ctx).values()):
        if kept.phase not in OPEN or only not in (None, kept.order.definition):
            continue
        if any(swap_stage.is_carried_out(kept.order, fact) for fact in facts):
            _carried_out(ctx, kept.order, None)  # just before we died, or without telling us
        elif swap_stage.is_overtaken(kept.order, facts):
            _overtaken(ctx, kept.order)
    current = latest(ctx)
    wanted = [k.order for k in current.values() if only in (None, k.order.definition)]
    facts = [*facts, *swap_stage.unopened(wanted, facts, opens=ctx.artifacts.opens)]
    due = [current[order.definition] for order in swap_stage.reconcile(wanted, facts)]
    for id in ctx.standing.behind.keys() - {kept.order.id for kept in due}:
        if only is None:  # who has caught up and falls behind again has its time anew
            del ctx.standing.behind[id]
    return [kept for kept in due if _may_begin(ctx, kept.order)]


def _may_begin(ctx: Context, order: SwapOrder) -> bool:
    standing = ctx.standing
    return may_begin(
        order,
        named=order.id in standing.named,
        silent_s=ctx.clock.monotonic_s() - standing.named_at_s,
        fresh_s=ctx.settings.fresh_s,
    )


def _drive(ctx: Context, kept: StoredOrder, facts: list[SlotFacts]) -> bool:
    """Tell the server one order; True if a way back was written that is to be told now."""
    with ctx.spans.span("deliver", after=kept.traceparent, about=about(kept.order)):
        return _tell_server(ctx, kept, facts)


def _tell_server(ctx: Context, kept: StoredOrder, facts: list[SlotFacts]) -> bool:
    order = kept.order
    try:
        if order.artifact is not None:
            _prepare(ctx, order)
        took_ns = ctx.swapper.commit(order)
    except CandidateError as error:
        return _refused(ctx, kept, error.reason, error.detail)
    except PartialCommit as error:
        log.error("%s of %s is partial: %s", order.kind, order.definition, error)
        if kept.phase in OPEN and order.kind is SwapKind.SWAP and _refuses_mixed(ctx):
            return _all_back(ctx, order, reason=error.code, detail=str(error))
        return _behind(ctx, kept, facts, error)
    except (Refused, UnreadableInput) as error:
        return _not_had(ctx, order, error)
    except TemporaryError as error:
        log.info("%s of %s waits: %s", order.kind, order.definition, error)
        order_store.wait(ctx, order, reason=_code(_cause(error)), detail=str(error))
        return _behind(ctx, kept, facts, error)
    _carried_out(ctx, order, took_ns)
    return False


def _prepare(ctx: Context, order: SwapOrder) -> None:
    folder = ctx.artifacts.folder_of(order)
    try:
        ctx.swapper.prepare(order, artifact_dir=folder)
    except (CandidateError, TemporaryError) as error:
        if isinstance(error, CandidateError) and error.reason not in swap_stage.NOT_YET:
            raise
        if order.kind is SwapKind.SWAP:
            message = f"{order.definition} cannot be prepared yet: {error}"
            raise TemporaryError(message, delay_s=1.0) from error
        # one process that hangs must not keep those back that can go
        log.warning("going back without some process of %s: %s", order.definition, error)


def _cause(error: TemporaryError) -> str:
    """Return what keeps an order waiting: the server's own word where it has said one."""
    cause = error.__cause__
    return cause.reason if isinstance(cause, CandidateError) else error.code


def _carried_out(ctx: Context, order: SwapOrder, took_ns: int | None) -> None:
    """Write that the server has an order, and tell; the second time nothing is told."""
    ctx.standing.behind.pop(order.id, None)
    ctx.standing.stuck.pop(order.definition, None)
    order_store.go(ctx, order)
    stored = ctx.store.get(RecordKind.ORDER, order.id)
    if stored is None or stored.phase not in OPEN:
        return
    tell(ctx, order, Outcome.DONE, took_ns=took_ns)  # before it is closed: told twice, or once
    with ctx.store.transaction():
        ctx.store.advance(RecordKind.ORDER, order.id, expect=stored.phase, to="done")
        for phase in ("new", "done"):
            for other in ctx.store.list(RecordKind.ORDER, phase=phase):
                slot, epoch = other.body.get("definition"), other.body.get("epoch")
                if slot == order.definition and isinstance(epoch, int) and epoch < order.epoch:
                    ctx.store.advance(RecordKind.ORDER, other.id, expect=phase, to="superseded")
    ctx.telemetry.count("retuned_swaps_total", kind=str(order.kind))
    if took_ns is not None:
        ctx.telemetry.observe("retuned_swap_flip_seconds", took_ns / 1e9)
    log.info("%s of %s carried out, epoch %d", order.kind, order.definition, order.epoch)


def _overtaken(ctx: Context, order: SwapOrder) -> None:
    """Give up an order that a process would refuse; our own ways back get a later epoch."""
    if ctx.store.get(RecordKind.FAILED, order.proposal) and order.kind is SwapKind.ROLLBACK:
        _replace(ctx, order, swap_stage.reissue(order, epoch=fresh_epoch(ctx)))
        return
    order_store.refuse(ctx, order, reason=str(Refusal.OUT_OF_EPOCH))
    ctx.store.advance(RecordKind.ORDER, order.id, expect="new", to="refused")


def _refused(ctx: Context, kept: StoredOrder, reason: str, detail: str) -> bool:
    """Act on a refusal by the server; True if a way back was written."""
    order = kept.order
    if reason == "not-prepared":  # a process that came in between, no fault of the artifact
        log.info("%s of %s waits: %s", order.kind, order.definition, detail)
        order_store.wait(ctx, order, reason=reason, detail=detail)
        return False
    if reason == "stale-epoch":
        if kept.phase in OPEN:
            _overtaken(ctx, order)
        return kept.phase in OPEN and order.kind is SwapKind.ROLLBACK
    if order.kind is SwapKind.ROLLBACK:
        return _lead_to_original(ctx, order, reason=reason, detail=detail)
    log.error("%s is refused: %s %s", order.definition, reason, detail)
    if kept.phase == "done" or _somebody_has(ctx, order):
        return _all_back(ctx, order, reason=reason, detail=detail)
    report = WatchReport(action=WatchAction.ROLLBACK, reason=reason, detail=detail[:1000])
    order_store.refuse(ctx, order, reason=_code(reason), detail=detail)
    with ctx.store.transaction():
        fail(ctx, order, report)
        ctx.store.advance(RecordKind.ORDER, order.id, expect="new", to="refused")
    return False


def _not_had(ctx: Context, order: SwapOrder, error: Refused | UnreadableInput) -> bool:
    """Act on an artifact that the operator does not hand out: a swap waits, a way back goes on."""
    if order.kind is SwapKind.ROLLBACK:
        return _lead_to_original(ctx, order, reason=error.code, detail=str(error))
    log.error("%s waits for its artifact: %s", order.definition, error)
    order_store.wait(ctx, order, reason=_code(error.code), detail=str(error))
    return False


def _behind(ctx: Context, kept: StoredOrder, facts: list[SlotFacts], error: TemporaryError) -> bool:
    """Act on a process that does not follow an order that others have; True if all go back."""
    order, behind = kept.order, ctx.standing.behind
    if order.kind is SwapKind.ROLLBACK:
        # the operator, or a process, does not answer: the original needs neither
        stuck = order.artifact is not None and not any(
            swap_stage.is_carried_out(order, fact) for fact in facts
        )
        return stuck and _lead_to_original(ctx, order, reason=error.code, detail=str(error))
    if kept.phase in OPEN or not _somebody_has(ctx, order):
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


def _refuses_mixed(ctx: Context) -> bool:
    return swap_stage.must_go_back(
        ctx.settings.mixed_epochs, was_complete=False, behind_s=0.0, catch_up_s=0.0
    )


def _somebody_has(ctx: Context, order: SwapOrder) -> bool:
    mine = [f for f in slot_facts(ctx) or () if f.definition == order.definition]
    return any(max(fact.epoch, fact.newest_epoch) >= order.epoch for fact in mine)


def _all_back(ctx: Context, order: SwapOrder, *, reason: str, detail: str) -> bool:
    report = WatchReport(action=WatchAction.ROLLBACK, reason=reason, detail=detail[:1000])
    return write_way_back(ctx, order, report, after=order.epoch)


def write_way_back(ctx: Context, order: SwapOrder, report: WatchReport, *, after: int) -> bool:
    """Write the way back of an order that does harm, and tell; it is carried out next.

    Needs nobody: no policy, no operator. Writing it again does nothing.

    Parameters
    ----------
    order
        In force, or half so.
    report
        What was judged.
    after
        Latest epoch that the server is known to have.
    """
    with ctx.lock:
        stored = ctx.store.get(RecordKind.ORDER, order.id)
        if stored is None or stored.phase not in ("new", "done"):
            return False
        said = about(order) | {"reason": _code(report.reason)}
        after_that = "" if spans.current() else stored.traceparent
        with ctx.spans.span("rollback", after=after_that, links=[stored.traceparent], about=said):
            _write_back(ctx, order, report, phase=stored.phase, after=after)
    return True


def _write_back(
    ctx: Context, order: SwapOrder, report: WatchReport, *, phase: str, after: int
) -> None:
    nowhere = order.kind is SwapKind.ROLLBACK or order.previous in harmful(ctx)
    epoch = fresh_epoch(ctx, after=max(after, order.epoch))
    back = swap_stage.order_rollback(order, epoch=epoch, to_original=nowhere)
    log.error("going back from %s: %s %s", order.definition, report.reason, report.detail)
    _tell_harm(ctx, order, report)
    with ctx.store.transaction():
        fail(ctx, order, report)
        ctx.store.advance(RecordKind.ORDER, order.id, expect=phase, to="undone")
        ctx.store.add(RecordKind.ORDER, back.id, back.model_dump(mode="json"), phase="new")
    ctx.standing.reports[order.definition] = (order.proposal, report)
    ctx.telemetry.count("retuned_rollbacks_total", reason=_code(report.reason))


def _tell_harm(ctx: Context, order: SwapOrder, report: WatchReport) -> None:
    """Tell what happened; a full disk keeps no way back from being taken."""
    try:
        reason = _code(report.reason)
        tell(ctx, order, Outcome.ROLLED_BACK, reason=reason, detail=report.detail)
    except TemporaryError as error:
        log.error("the operator learns of it by the next look only: %s", error)


def _lead_to_original(ctx: Context, order: SwapOrder, *, reason: str, detail: str) -> bool:
    """Order the original where the way back is barred; that needs neither artifact nor prepare."""
    if order.artifact is None:
        log.error("the server refuses the original of %s: %s %s", order.definition, reason, detail)
        ctx.telemetry.count("retuned_rollbacks_failed_total", reason=_code(reason))
        ctx.standing.stuck[order.definition] = order.id
        return False  # told again, on and on
    log.error("no way back of %s to %s: %s", order.definition, order.artifact, detail)
    return _replace(ctx, order, swap_stage.to_original(order, epoch=fresh_epoch(ctx)))


def _replace(ctx: Context, order: SwapOrder, by: SwapOrder) -> bool:
    with ctx.store.transaction():
        for phase in ("new", "done"):
            ctx.store.advance(RecordKind.ORDER, order.id, expect=phase, to="superseded")
        return ctx.store.add(RecordKind.ORDER, by.id, by.model_dump(mode="json"), phase="new")


def _code(reason: str) -> str:
    """Return a reason as a stable code; a server's own words are no code."""
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in reason.lower())
    return "-".join(part for part in kept.split("-") if part)[:64].strip("-")
