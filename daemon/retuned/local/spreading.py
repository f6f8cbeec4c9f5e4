"""Step 10, the canary: the next step of a swap that not all launches run yet."""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, TemporaryError
from retuned.local.context import Context
from retuned.local.ordered import say
from retuned.ports import Stored
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import (
    CanaryAction,
    CanaryDecision,
    WatchReport,
    WatchSample,
    decide_canary,
)

log = logging.getLogger(__name__)

_MOVES = (CanaryAction.ADVANCE, CanaryAction.NARROW_GUARD)


def move_on(
    ctx: Context, order: SwapOrder, stored: Stored, *, sample: WatchSample, report: WatchReport
) -> CanaryDecision | None:
    """Take the next step of a canary if it is due; None where the order is no canary.

    What is to go back is the watch's to bring back.
    """
    if not order.canary or order.artifact is None:
        return None
    decision = decide_canary(order, sample, report=report)
    if decision.action not in _MOVES:
        return decision
    try:
        ctx.swapper.ramp(order, fraction=decision.fraction, excluded=decision.excluded)
    except (CandidateError, TemporaryError) as error:  # some may have it: they are told again
        log.info("the canary of %s waits: %s", order.definition, error)
        return decision
    say(
        ctx,
        stored.id,
        f"canary-{decision.action}",
        reason=str(decision.reason),
        detail=decision.detail,
        fraction=decision.fraction,
        left_out=[list(bucket) for bucket in decision.excluded],
        slot=order.definition,
    )
    ctx.telemetry.count("retuned_canary_steps_total", action=str(decision.action))
    log.info("%s: %s, now %.1f %%", order.definition, decision.reason, 100 * decision.fraction)
    return decision
