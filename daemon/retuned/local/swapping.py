"""Step 9, the deeds: bring the server to what is ordered, whichever side died in between.

Each order is carried out for itself: what goes wrong with one never keeps another back.
"""

from __future__ import annotations

import logging

from retuned import catalog
from retuned.adapters.artifact_folder import sign_artifact
from retuned.errors import (
    CandidateError,
    HarnessError,
    MissingDependency,
    PartialCommit,
    TemporaryError,
    UnreadableInput,
)
from retuned.local import configured
from retuned.local.carried_out import close_order
from retuned.local.comparing import UNKNOWN, check_before_load
from retuned.local.context import Context, RecordKind
from retuned.local.found import found_solution
from retuned.local.ordered import OPEN, StoredOrder, latest, server_facts
from retuned.local.returning import order_back
from retuned.local.undelivered import behind, not_built, partial, refused, reissue
from retuned.ports import Stored
from retuned.spans import Value
from retuned.stages import swap as swap_stage
from retuned.stages.swap import SwapKind, SwapOrder

log = logging.getLogger(__name__)

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
        if configured.is_change(ctx, order.proposal):
            configured.prepare(ctx, order)
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
