"""Steps 9 and 10: drive orders into the server, watch what they do, go back when it is wrong."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from retuned.contract import Digest, Guard, Solution
from retuned.errors import CandidateError, TemporaryError
from retuned.local.context import Context, Kind
from retuned.local.found import found_solution
from retuned.ports import Event, SlotState, Stored
from retuned.stages import swap as swap_stage
from retuned.stages import watch as watch_stage
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SlotFacts, SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReport, WatchSample

log = logging.getLogger(__name__)

_HISTORY = 256
"""Samples kept per order for the slow-decay test; totals survive a restart in the runtime."""


@dataclass(slots=True)
class History:
    """Samples seen per order. Not durable: the runtime's totals are."""

    samples: dict[str, deque[WatchSample]] = field(default_factory=dict)

    def extend(self, order: SwapOrder, sample: WatchSample) -> list[WatchSample]:
        """Add one sample and return all of that order, oldest first."""
        series = self.samples.setdefault(order.id, deque(maxlen=_HISTORY))
        series.append(sample)
        return list(series)

    def forget_all_but(self, orders: set[str]) -> None:
        """Drop orders that are no longer in force."""
        for gone in self.samples.keys() - orders:
            del self.samples[gone]


def start_swaps(ctx: Context) -> None:
    """Write an order for one approved proposal at a time; the way back is part of the order."""
    if ctx.store.list(Kind.PROPOSAL, phase="swapping"):
        return
    for stored in ctx.store.list(Kind.PROPOSAL, phase="approved"):
        proposal = Proposal.model_validate(stored.body)
        before = _last_order(ctx, proposal.definition)
        with ctx.store.transaction():
            order = swap_stage.order_swap(
                proposal,
                epoch=_next_epoch(ctx),
                previous=before.artifact if before else None,
                previous_guard=before.guard if before else None,
                shadow_every=ctx.settings.shadow_every,
            )
            ctx.store.add(Kind.ORDER, order.id, order.model_dump(mode="json"), phase="new")
            ctx.store.advance(Kind.PROPOSAL, proposal.id, expect="approved", to="swapping")
            for phase in ("watching", "promoted"):
                for older in ctx.store.list(Kind.PROPOSAL, phase=phase):
                    if older.body["definition"] == proposal.definition:
                        ctx.store.advance(Kind.PROPOSAL, older.id, expect=phase, to="superseded")
        return


def drive_orders(ctx: Context) -> None:
    """Carry out every order that the server has not, whichever side died in between."""
    orders = _latest_orders(ctx)
    if not orders:
        return
    try:
        facts = [_facts(slot) for slot in ctx.swapper.slots()]
        for order in swap_stage.reconcile(orders, facts):
            _drive(ctx, order)
        _close_carried_out(ctx)
    except TemporaryError as error:
        log.info("server does not answer, orders wait: %s", error)


def watch(ctx: Context, history: History) -> list[WatchReport]:
    """Judge every swap in force on what the runtime counted; roll back what is wrong."""
    watched = [p for phase in ("watching", "promoted") for p in _proposals(ctx, phase)]
    if not watched:
        history.forget_all_but(set())
        return []
    try:
        samples = {sample.definition: sample for sample in ctx.swapper.samples()}
    except TemporaryError as error:
        log.info("nothing to watch: %s", error)
        return []
    reports = []
    orders = set()
    for stored in watched:
        order, since = _order_of(ctx, stored.id)
        sample = samples.get(order.definition)
        orders.add(order.id)
        if sample is None or sample.epoch != order.epoch:
            continue  # drive_orders will bring the server up to it
        report = watch_stage.assess(
            order,
            history.extend(order, sample),
            seconds_since_commit=(ctx.clock.now() - since.updated_at).total_seconds(),
            settings=ctx.settings.watch,
        )
        reports.append(report)
        _act(ctx, stored, report)
    history.forget_all_but(orders)
    return reports


def roll_back(ctx: Context, proposal: Stored, *, reason: str, detail: str, who: str) -> None:
    """Order the way back and carry it out at once. Never gated; safe to call again."""
    body = Proposal.model_validate(proposal.body)
    log.warning("rolling back %s: %s %s", body.definition, reason, detail)
    with ctx.store.transaction():
        if not ctx.store.advance(
            Kind.PROPOSAL, proposal.id, expect=proposal.phase, to="rolling-back"
        ):
            return
        forward, _ = _order_of(ctx, proposal.id)
        order = swap_stage.order_rollback(forward, epoch=_next_epoch(ctx))
        ctx.store.add(Kind.ORDER, order.id, order.model_dump(mode="json"), phase="new")
        ctx.store.add(
            Kind.QUARANTINE,
            body.artifact,
            {
                "until": (ctx.clock.now() + ctx.settings.quarantine).isoformat(),
                "reason": reason,
            },
            phase="current",
        )
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=Kind.PROPOSAL,
                id=proposal.id,
                what="alarm",
                who=who,
                detail={"reason": reason, "detail": detail, "slot": body.definition},
            )
        )
    ctx.telemetry.count("retuned_rollbacks_total", reason=reason)
    drive_orders(ctx)


def in_force(ctx: Context, definition: str) -> Digest | None:
    """Digest of the artifact that the last order put into a slot; None is the original."""
    order = _last_order(ctx, definition)
    return order.artifact if order else None


def live_guard(ctx: Context, definition: str) -> Guard | None:
    """Shapes that a swapped-in variant serves; None where the original serves all."""
    order = _last_order(ctx, definition)
    return order.guard if order is not None and order.artifact is not None else None


def _last_order(ctx: Context, definition: str) -> SwapOrder | None:
    return next((o for o in _latest_orders(ctx) if o.definition == definition), None)


def _latest_orders(ctx: Context) -> list[SwapOrder]:
    """Return the newest order per slot: what ought to be in force."""
    latest: dict[str, SwapOrder] = {}
    for stored in ctx.store.list(Kind.ORDER):
        if stored.phase == "refused":
            continue
        order = SwapOrder.model_validate(stored.body)
        if order.definition not in latest or latest[order.definition].epoch < order.epoch:
            latest[order.definition] = order
    return list(latest.values())


def _next_epoch(ctx: Context) -> int:
    return 1 + max((int(o.body["epoch"]) for o in ctx.store.list(Kind.ORDER)), default=0)


def _drive(ctx: Context, order: SwapOrder) -> None:
    try:
        if order.artifact is not None:  # after a restart of the server the way back needs it too
            solution = _solution(ctx, order.artifact)
            ctx.swapper.prepare(order, artifact_dir=ctx.bench.build(solution))
        took_ns = ctx.swapper.commit(order)
    except CandidateError as error:
        _refuse(ctx, order, error)
        return
    _carried_out(ctx, order, took_ns)


def _solution(ctx: Context, digest: Digest) -> Solution:
    solution = found_solution(ctx.store, digest)
    if solution is None:
        raise CandidateError("artifact-missing", detail=f"{digest} is not in the store")
    return solution


def _carried_out(ctx: Context, order: SwapOrder, took_ns: int | None) -> None:
    """Write that the server has carried an order out; the second time nothing is written."""
    end = "watching" if order.kind is SwapKind.SWAP else "rolled-back"
    begin = "swapping" if order.kind is SwapKind.SWAP else "rolling-back"
    with ctx.store.transaction():
        if not ctx.store.advance(Kind.ORDER, order.id, expect="new", to="done"):
            return
        ctx.store.advance(Kind.PROPOSAL, order.proposal, expect=begin, to=end)
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=Kind.PROPOSAL,
                id=order.proposal,
                what="swapped" if order.kind is SwapKind.SWAP else "rolled-back",
                who="retuned",
                detail={"epoch": order.epoch, "slot": order.definition, "took_ns": took_ns},
            )
        )
    ctx.telemetry.count("retuned_swaps_total", kind=str(order.kind))
    log.info("%s of %s carried out, epoch %d", order.kind, order.definition, order.epoch)


def _close_carried_out(ctx: Context) -> None:
    """Close orders that the server carried out just before we died."""
    epochs = {slot.definition: slot.epoch for slot in ctx.swapper.slots()}
    for stored in ctx.store.list(Kind.ORDER, phase="new"):
        order = SwapOrder.model_validate(stored.body)
        if epochs.get(order.definition) == order.epoch:
            _carried_out(ctx, order, None)


def _refuse(ctx: Context, order: SwapOrder, error: CandidateError) -> None:
    log.error("server refused %s: %s", order.definition, error)
    with ctx.store.transaction():
        ctx.store.advance(Kind.ORDER, order.id, expect="new", to="refused")
        ctx.store.advance(Kind.PROPOSAL, order.proposal, expect="swapping", to="refused")
        ctx.store.advance(
            Kind.PROPOSAL, order.proposal, expect="rolling-back", to="rollback-failed"
        )
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=Kind.PROPOSAL,
                id=order.proposal,
                what="refused",
                who="retuned",
                detail={"reason": error.reason, "detail": error.detail},
            )
        )


def _act(ctx: Context, stored: Stored, report: WatchReport) -> None:
    if report.action is WatchAction.ROLLBACK:
        roll_back(ctx, stored, reason=report.reason, detail=report.detail, who="retuned")
    elif report.action is WatchAction.KEEP and stored.phase == "watching":
        with ctx.store.transaction():
            if ctx.store.advance(Kind.PROPOSAL, stored.id, expect="watching", to="promoted"):
                ctx.store.record(
                    Event(
                        at=ctx.clock.now(),
                        kind=Kind.PROPOSAL,
                        id=stored.id,
                        what="promoted",
                        who="retuned",
                        detail={"reason": report.reason, "detail": report.detail},
                    )
                )


def _order_of(ctx: Context, proposal: str) -> tuple[SwapOrder, Stored]:
    """Return the swap order of a proposal; a proposal in force always has one."""
    for stored in reversed(ctx.store.list(Kind.ORDER)):
        order = SwapOrder.model_validate(stored.body)
        if order.proposal == proposal and order.kind is SwapKind.SWAP:
            return order, stored
    raise LookupError(f"proposal {proposal} is in force but has no order")


def _proposals(ctx: Context, phase: str) -> list[Stored]:
    return list(ctx.store.list(Kind.PROPOSAL, phase=phase))


def _facts(slot: SlotState) -> SlotFacts:
    return SlotFacts(definition=slot.definition, active=slot.active, epoch=slot.epoch)
