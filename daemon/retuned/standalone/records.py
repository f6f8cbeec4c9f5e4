"""Records read back one by one: one that cannot be understood is named, and stops no other."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from pydantic import ValidationError

from retuned.contract import Record
from retuned.ports import Event, Stored
from retuned.stages.proposal import Proposal
from retuned.standalone.context import Context, RecordKind

log = logging.getLogger(__name__)

UNREADABLE = "record-unreadable"
"""What the history of a record says that this version cannot understand."""

R = TypeVar("R", bound=Record)


def understood(ctx: Context, stored: Stored, kind: type[R]) -> R | None:
    """Return a record; None where it cannot be understood, which its history says once.

    Whoever asks leaves it out: what nobody understands is proposed, ordered and swapped by nobody.
    """
    try:
        return kind.model_validate(stored.body)
    except ValidationError as error:
        detail = f"{_place(error)}; it is left out, write it anew or go back to the version of it"
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
