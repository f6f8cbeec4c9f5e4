"""Records of one machine: proposals read back, their history, and the orders of the node agent.

A record that cannot be read is named in its history and hides no other. The node agent writes the
orders, see `retuned.node`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.contract import Digest, Guard, Record
from retuned.node.order_context import ORDER
from retuned.node.order_store import StoredOrder, bringer, latest, read_order
from retuned.ports import Event, Store, Stored
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.standalone.context import Context, RecordKind

log = logging.getLogger(__name__)

UNREADABLE = "record-unreadable"
"""What the history of a record says that this version cannot understand."""

R = TypeVar("R", bound=Record)


def understood(ctx: Context, stored: Stored, kind: type[R]) -> R | None:
    """Return a record; None if it is not valid, which its history then records once.

    Callers leave such a record out: no step proposes, orders or swaps it.
    """
    try:
        return kind.model_validate(stored.body)
    except ValidationError as error:
        detail = f"{_place(error)}; left out; write it again, or run the version that wrote it"
        if not any(event.what == UNREADABLE for event in ctx.store.events(id=stored.id)):
            log.error("%s %s cannot be understood: %s", stored.kind, stored.id, detail)
            ctx.store.record(
                Event(
                    at=ctx.clock.now(),
                    kind=stored.kind,
                    id=stored.id,
                    what=UNREADABLE,
                    who="retuned",
                    detail={"detail": detail},
                )
            )
        return None


def proposals(ctx: Context, phases: Iterable[str]) -> list[tuple[Stored, Proposal]]:
    """Return the proposals in any of some phases that can be understood."""
    found = []
    for phase in phases:
        for stored in ctx.store.list(RecordKind.PROPOSAL, phase=phase):
            proposal = understood(ctx, stored, Proposal)
            if proposal is not None:
                found.append((stored, proposal))
    return found


def _place(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the whole record"
    return f"{place}: {first['msg']}"[:300]


BEFORE_SWAP = tuple(str(each) for each in ProposalPhase if each.is_before_swap)
"""Phases in which no process can have the artifact."""
UNDER_WAY = tuple(str(each) for each in ProposalPhase if each.is_under_way)
"""Phases in which the server may run the artifact and it is not proven."""
GOING_BACK = tuple(str(each) for each in ProposalPhase if each.is_going_back)
"""Phases of a rollback."""
IN_FORCE = (*UNDER_WAY, str(ProposalPhase.PROMOTED))
"""Phases of proposals whose artifact is in force, or was until another one replaced it."""
UNDECIDED = (*BEFORE_SWAP, str(ProposalPhase.CANARY))
"""Phases in which an answer of people, of the policy or of the server is outstanding."""


def say(ctx: Context, proposal: str, what: str, who: str = "retuned", **detail: object) -> None:
    """Write one line of a proposal's history."""
    at = ctx.clock.now()
    ctx.store.record(
        Event(at=at, kind=RecordKind.PROPOSAL, id=proposal, what=what, who=who, detail=detail)
    )


def in_phases(ctx: Context, phases: Iterable[str]) -> Sequence[Stored]:
    """Return the proposals in any of some phases, oldest first within each."""
    return [
        stored for phase in phases for stored in ctx.store.list(RecordKind.PROPOSAL, phase=phase)
    ]


CARRIED_OUT = ("done", "superseded", "undone")
"""Phases of orders that the server has, or may have, committed."""


def in_force(store: Store, definition: str) -> Digest | None:
    """Return the artifact that a slot runs, or is about to run; None is the original."""
    kept = latest(store).get(definition)
    return kept.order.artifact if kept else None


def live_guard(store: Store, definition: str) -> Guard | None:
    """Return the shapes that a swapped-in variant serves; None if the original serves all."""
    kept = latest(store).get(definition)
    return kept.order.guard if kept is not None and kept.order.artifact is not None else None


def committed(store: Store) -> dict[str, StoredOrder]:
    """Return, by slot, the newest order if the server has committed it."""
    return {slot: kept for slot, kept in latest(store).items() if kept.phase == "done"}


def last_done(store: Store, definition: str) -> SwapOrder | None:
    """Return the order that the server committed last in a slot, as far as it is still in force."""
    done = (read_order(each) for each in store.list(ORDER, phase="done"))
    mine = [k.order for k in done if k is not None and k.order.definition == definition]
    return max(mine, key=lambda each: each.epoch, default=None)


def proposal_in_force(store: Store, definition: str) -> str | None:
    """Return the proposal whose variant a slot runs; None for the original."""
    kept = latest(store).get(definition)
    if kept is None or kept.order.artifact is None:
        return None
    return bringer(store, kept.order).proposal


def swap_order_of(store: Store, proposal: str) -> StoredOrder | None:
    """Return the newest swap order of a proposal, in any phase."""
    found = [read_order(each) for each in store.list(ORDER, proposal=proposal)]
    mine = [kept for kept in found if kept is not None and kept.order.kind is SwapKind.SWAP]
    return max(mine, key=lambda kept: kept.order.epoch, default=None)


def was_swapped(store: Store, definition: str) -> bool:
    """Whether a slot ever ran a variant."""
    return any(
        each.body.get("definition") == definition
        for phase in CARRIED_OUT
        for each in store.list(ORDER, phase=phase)
    )


_UNFINISHED = {
    RecordKind.HYPOTHESIS: ("open", "testing"),
    RecordKind.EXPERIMENT: ("running", "won"),
    RecordKind.PROPOSAL: (*UNDECIDED, *GOING_BACK),
}


def under_way(store: Store, definition: str) -> bool:
    """Whether a hypothesis, an experiment or a proposal about a kernel is under way."""
    return any(
        stored.body.get("definition") == definition
        for kind, phases in _UNFINISHED.items()
        for phase in phases
        for stored in store.list(kind, phase=phase)
    )
