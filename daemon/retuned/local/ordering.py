"""Step 9, the records: what is in force, what is ordered, what is called off, the way back.

Nothing here talks a server into anything; `swapping` carries out what is written here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from retuned.contract import Digest, Guard
from retuned.errors import RetunedError, TemporaryError, UnreadableInput
from retuned.local import asking, proving
from retuned.local.context import Context, Kind
from retuned.local.reading import proposals
from retuned.ports import Event, SlotState, Stored
from retuned.stages import gate as gate_stage
from retuned.stages import swap as swap_stage
from retuned.stages.gate import EndToEndRule, GateState
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SlotFacts, Spread, SwapKind, SwapOrder, spread_by
from retuned.stages.verdict import Doubt, EvidenceDocument

log = logging.getLogger(__name__)

OPEN = ("new", "prepared")
"""Phases of an order that the server may not have carried out."""
IN_PLACE = ("watching", "promoted")
"""Phases of a proposal whose artifact is in force."""
_BUSY = ("swapping", "rolling-back", "rollback-failed")
"""Phases of a proposal that keep other swaps out of its slot."""
STANDING = ("new", "prepared", "done")
"""Phases of orders that are in force, were so not long ago, or may come to be; in all others they
are in force no more, or never were."""
_PAST = "past"
"""Phase of an order that was carried out so long ago that nothing leads back to it."""
_KEPT = 32
"""Orders of a slot that are never put away, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An order as it is kept."""

    order: SwapOrder
    """What was ordered."""
    phase: str
    """How far it has come."""


def orders(ctx: Context) -> Sequence[Kept]:
    """Return the orders that are in force or may be carried out, in order of their epochs.

    Those that are over, and those that `retire` put away are not read.
    """
    stored = [each for phase in STANDING for each in ctx.store.list(Kind.ORDER, phase=phase)]
    return sorted(_read(stored), key=lambda kept: kept.order.epoch)


def _read(records: Sequence[Stored]) -> list[Kept]:
    found = []
    for stored in records:
        try:
            order = SwapOrder.model_validate(stored.body)
        except ValidationError as error:
            # one bad record must not stop the watch over all other slots
            log.error("order %s is left out, it cannot be read: %s", stored.id, error)
            continue
        found.append(Kept(order=order, phase=stored.phase))
    return found


def latest(ctx: Context, *, done: bool = False) -> dict[str, Kept]:
    """Return the newest order per slot: what ought to be in force, or with `done` what is."""
    newest: dict[str, Kept] = {}
    for kept in orders(ctx):
        if done and kept.phase != "done":
            continue
        known = newest.get(kept.order.definition)
        if known is None or known.order.epoch < kept.order.epoch:
            newest[kept.order.definition] = kept
    return newest


def in_force(ctx: Context, definition: str) -> Digest | None:
    """Digest of the artifact that the last order put into a slot; None is the original."""
    kept = latest(ctx).get(definition)
    return kept.order.artifact if kept else None


def live_guard(ctx: Context, definition: str) -> Guard | None:
    """Shapes that a swapped-in variant serves; None where the original serves all."""
    kept = latest(ctx).get(definition)
    return kept.order.guard if kept is not None and kept.order.artifact is not None else None


def swap_order_of(ctx: Context, proposal: str) -> Kept | None:
    """Return the newest swap order of a proposal, whatever became of it."""
    named = ctx.store.list(Kind.ORDER, proposal=proposal)
    mine = [kept for kept in _read(named) if kept.order.kind is SwapKind.SWAP]
    return max(mine, key=lambda kept: kept.order.epoch, default=None)


def owner(ctx: Context, order: SwapOrder) -> str | None:
    """Return the proposal that an order brings into force: its own, or one that comes back."""
    if order.kind is SwapKind.SWAP or order.artifact is None:
        return order.proposal if order.kind is SwapKind.SWAP else None
    newest = _bringer(orders(ctx), order)
    if newest is None:  # so long ago that it was put away
        newest = _bringer(_read(ctx.store.list(Kind.ORDER, phase=_PAST)), order)
    return newest.proposal if newest is not None else None


def _bringer(found: Sequence[Kept], order: SwapOrder) -> SwapOrder | None:
    """Return the newest swap before an order that brought the same artifact into its slot."""
    earlier = [
        kept.order
        for kept in found
        if kept.phase in ("done", _PAST)
        and kept.order.kind is SwapKind.SWAP
        and (kept.order.definition, kept.order.artifact) == (order.definition, order.artifact)
        and kept.order.epoch < order.epoch
    ]
    return max(earlier, key=lambda each: each.epoch, default=None)


def facts_of(slot: SlotState) -> SlotFacts:
    """Return what decisions read of a slot."""
    return SlotFacts(
        definition=slot.definition,
        active=slot.active,
        epoch=slot.epoch,
        newest_epoch=slot.newest_epoch,
        tripped=slot.tripped,
    )


def fresh_epoch(ctx: Context, *, after: int = 0) -> int:
    """Return an epoch that every process will accept; `after` is one the server is known to have.

    Called outside transactions, because a server may take seconds to answer.
    """
    facts: Sequence[SlotFacts] = ()
    if not after:
        try:
            facts = [facts_of(slot) for slot in ctx.swapper.slots()]
        except TemporaryError as error:
            log.info("epochs go on from the last order: %s", error)
    # epochs grow with each order that is written, so the newest few have the last one
    newest = _read(ctx.store.list(Kind.ORDER, limit=_KEPT))
    known = [kept.order for kept in (*newest, *orders(ctx))]
    return max(after + 1, swap_stage.next_epoch(known, facts))


def retire(ctx: Context, *, most: int = 1_000) -> int:
    """Put away orders of long ago, `most` at a time; return how many.

    Of each slot the newest stay, and those that brought what the newest may go back to. What is put
    away is still found where it is asked for.
    """
    by_slot: dict[str, list[Kept]] = {}
    for kept in orders(ctx):
        if kept.phase == "done":
            by_slot.setdefault(kept.order.definition, []).append(kept)
    going: list[str] = []
    for own in by_slot.values():
        older, newest = own[:-_KEPT], own[-_KEPT:]
        wanted = {each for kept in newest for each in (kept.order.artifact, kept.order.previous)}
        going += [
            kept.order.id
            for kept in older
            if kept.order.artifact is None or kept.order.artifact not in wanted
        ]
    with ctx.store.transaction():
        return sum(
            ctx.store.advance(Kind.ORDER, id, expect="done", to=_PAST) for id in going[:most]
        )


def start_swaps(ctx: Context) -> None:
    """Write an order for each approved proposal, one at a time in a slot, with its way back."""
    approved = proposals(ctx, ("approved",))
    if not approved:
        return
    epoch = fresh_epoch(ctx)
    for _, proposal in approved:
        try:
            with ctx.store.transaction():
                if _start(ctx, proposal, epoch=epoch):
                    epoch += 1
        except RetunedError as error:  # tried again at the next look, after the others
            log.error("%s is not ordered: %s", proposal.definition, error)


def _start(ctx: Context, proposal: Proposal, *, epoch: int) -> bool:
    """Write one order if its slot is free and the gate says so in this very transaction."""
    if any(slot_of(ctx, each) == proposal.definition for each in in_phases(ctx, _BUSY)):
        return False
    if asking.evidence_expired(ctx, proposal):
        return False
    if asking.ask(ctx, proposal).state is not GateState.APPROVED:
        return False  # the gate's own step says why
    document, doubt = proving.believed(ctx, proposal)
    if _doubted(ctx, proposal, doubt) or _cannot_be_proven(ctx, proposal):
        return False
    if not ctx.store.advance(Kind.PROPOSAL, proposal.id, expect="approved", to="swapping"):
        return False
    before = latest(ctx).get(proposal.definition)
    order = swap_stage.order_swap(
        proposal,
        epoch=epoch,
        previous=before.order.artifact if before else None,
        previous_guard=before.order.guard if before else None,
        shadow_every=ctx.settings.shadow_every,
        spread=_spread(ctx, proposal, document),
    )
    ctx.store.add(Kind.ORDER, order.id, order.model_dump(mode="json"), phase="new")
    return True


def _spread(ctx: Context, proposal: Proposal, document: EvidenceDocument | None) -> Spread:
    """Return how the policy lets a swap spread over launches, and what its checks may cost."""
    limits = asking.policy_limits(ctx, proposal.definition)
    assert limits is not None, "the gate approved it by a policy"
    evidence = document.evidence if document is not None else None
    return spread_by(limits, shadow_later=ctx.settings.shadow_later, evidence=evidence)


def _cannot_be_proven(ctx: Context, proposal: Proposal) -> bool:
    """Keep a swap waiting that its policy wants measured on the whole server, and nobody can."""
    limits = asking.policy_limits(ctx, proposal.definition)
    if ctx.end_to_end is not None or limits is None:
        return False
    if limits.end_to_end is not EndToEndRule.REQUIRED:
        return False
    if not any(event.what == "waits" for event in ctx.store.events(id=proposal.id)):
        detail = "the policy demands an end-to-end measurement; set end_to_end_url"
        log.warning("%s is not swapped: %s", proposal.definition, detail)
        say(ctx, proposal.id, "waits", reason="end-to-end-no-endpoint", detail=detail)
    return True


def _doubted(ctx: Context, proposal: Proposal, doubt: Doubt | None) -> bool:
    """Refuse what its evidence does not carry; nothing is ordered on somebody's word."""
    if doubt is None:
        return False
    log.error("%s is not swapped: %s", proposal.definition, doubt.detail)
    if ctx.store.advance(Kind.PROPOSAL, proposal.id, expect="approved", to="refused"):
        say(ctx, proposal.id, "refused", reason=str(doubt.fault), detail=doubt.detail[:2000])
    return True


def hold_back(ctx: Context) -> None:
    """Call off what is ordered and not delivered once the gate no longer says yes."""
    for stored, proposal in proposals(ctx, ("swapping",)):
        if asking.evidence_expired(ctx, proposal):
            call_off(ctx, stored, to="superseded", reason="environment-changed", detail="")
            continue
        answer = asking.ask(ctx, proposal)
        if answer.state is not GateState.APPROVED:
            said = gate_stage.explain(answer)
            to = asking.phase_of(answer)
            call_off(ctx, stored, to=to, reason=str(answer.reason), detail=said)


def call_off(
    ctx: Context, proposal: Stored, *, to: str, reason: str, detail: str, who: str = "retuned"
) -> None:
    """Withdraw a swap that no process was told to commit; take back one that some may have."""
    kept = swap_order_of(ctx, proposal.id)
    if kept is None or kept.phase != "new":
        order_back(ctx, proposal, reason=reason, detail=detail, who=who)
        return
    with ctx.store.transaction():
        if ctx.store.advance(Kind.ORDER, kept.order.id, expect="new", to="withdrawn"):
            ctx.store.advance(Kind.PROPOSAL, proposal.id, expect=proposal.phase, to=to)
            if to == "expired":
                lapse(ctx, proposal)
            what = "withdrawn" if to == "awaiting" else to
            say(ctx, proposal.id, what=what, who=who, reason=reason, detail=detail)


def lapse(ctx: Context, proposal: Stored) -> None:
    """Let a win be proposed again later: its proposal expired before anybody decided."""
    experiment = str(proposal.body.get("experiment", ""))
    ctx.store.advance(Kind.EXPERIMENT, experiment, expect="proposed", to="lapsed")


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
    log.warning("rolling back %s: %s %s", going.definition, reason, detail)
    epoch = fresh_epoch(ctx, after=after)
    with ctx.store.transaction():
        phase = proposal.phase
        if not ctx.store.advance(Kind.PROPOSAL, proposal.id, expect=phase, to="rolling-back"):
            return False
        _drop_open(ctx, going)
        back = swap_stage.order_rollback(
            going, epoch=epoch, to_original=going.previous in quarantined(ctx)
        )
        ctx.store.add(Kind.ORDER, back.id, back.model_dump(mode="json"), phase="new")
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
        ctx.store.advance(Kind.ORDER, kept.order.id, expect=kept.phase, to="superseded")
        other = kept.order.proposal
        if other != going.proposal and ctx.store.advance(
            Kind.PROPOSAL, other, expect="swapping", to="superseded"
        ):
            say(ctx, other, what="superseded", by=going.proposal)


def quarantined(ctx: Context) -> frozenset[str]:
    """Return the artifacts that did harm not long ago."""
    now = ctx.clock.now()
    return frozenset(
        stored.id
        for stored in ctx.store.list(Kind.QUARANTINE)
        if datetime.fromisoformat(str(stored.body["until"])) > now
    )


def _quarantine(ctx: Context, going: SwapOrder, reason: str) -> None:
    """Keep an artifact that did harm from being proposed, as long as its policy says."""
    until = ctx.clock.now() + _quarantine_of(ctx, going.definition)
    assert going.artifact is not None, "a swap puts something in force"
    body, artifact = {"until": until.isoformat(), "reason": reason}, going.artifact
    if not ctx.store.add(Kind.QUARANTINE, artifact, body, phase="current"):
        ctx.store.advance(Kind.QUARANTINE, artifact, expect="current", to="current", body=body)


def _quarantine_of(ctx: Context, definition: str) -> timedelta:
    """Return what the policy says, else the settings: a way back waits for no policy file."""
    try:
        limits = asking.policy_limits(ctx, definition)
    except (RetunedError, OSError) as error:
        log.warning("no policy to say how long harm is remembered: %s", error)
        limits = None
    return limits.quarantine if limits is not None else ctx.settings.quarantine


def say(ctx: Context, proposal: str, what: str, who: str = "retuned", **detail: object) -> None:
    """Write a line of a proposal's history."""
    at = ctx.clock.now()
    ctx.store.record(
        Event(at=at, kind=Kind.PROPOSAL, id=proposal, what=what, who=who, detail=detail)
    )


def slot_of(ctx: Context, proposal: Stored) -> str:
    """Return the slot of a proposal; where nobody understands it, its order knows."""
    named = proposal.body.get("definition")
    if isinstance(named, str):
        return named
    kept = swap_order_of(ctx, proposal.id)
    return kept.order.definition if kept is not None else ""


def in_phases(ctx: Context, phases: Sequence[str]) -> list[Stored]:
    """Return the proposals in any of some phases."""
    return [stored for phase in phases for stored in ctx.store.list(Kind.PROPOSAL, phase=phase)]
