"""Live kernels in a pod: definitions lifted from the server's launches, reported once.

Reading a launch needs the pod that makes it, so the sidecar lifts it; the operator treats the
result as untrusted input. Nothing is stored on disk: after a restart of the sidecar the runtime
sends its launches again, and a repeated report of a definition changes nothing. The lifting code is
imported for the first launch to lift: a pod whose server has no Triton kernels saves 8 MiB.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from retuned.api.agent import MAX_DEFINITION_CHARS, MAX_DEFINITIONS, DefinitionPost
from retuned.contract import digest_of
from retuned.errors import Refused, TemporaryError
from retuned.sidecar.context import Context
from retuned.sidecar.reports import is_about_us

if TYPE_CHECKING:
    from retuned.lifting.lift import Lifted

log = logging.getLogger(__name__)

_MAX_SHAPES = 256
"""Most shapes of one kernel in a report, those launched most often."""


def look(ctx: Context) -> None:
    """Lift what the server's runtime has seen, if it is time and anything is new."""
    now_s, standing = ctx.clock.monotonic_s(), ctx.standing
    if ctx.kernels is None or now_s - standing.lifted_at_s < ctx.settings.lift_s:
        return
    standing.lifted_at_s = now_s
    try:
        records = ctx.kernels.observed()
    except TemporaryError as error:
        log.info("no launches were shown: %s", error)
        return
    if not records:
        standing.lifted, standing.seen = {}, ""
        return
    from retuned.lifting.lift import lift_all
    from retuned.lifting.store_records import observed_digest

    digest = observed_digest(records, ctx.settings.kernel_bounds)
    if digest == standing.seen:
        return
    outcome = lift_all(records, bounds=ctx.settings.kernel_bounds)
    standing.lifted = _texts(outcome.lifted)
    standing.seen = digest
    for kept in outcome.kept:
        log.debug("%s is not lifted: %s %s", kept.kernel, kept.reason, kept.detail)
    log.info("live kernels: %d lifted, %d not", len(outcome.lifted), len(outcome.kept))


def tell(ctx: Context) -> int:
    """Tell each definition that the operator has not heard in this form; return how many.

    Raises
    ------
    TemporaryError, Refused
        As `Operator.post`; a definition that is refused is not sent again.
    """
    told, standing = 0, ctx.standing
    for name, text in standing.lifted.items() if ctx.target else ():
        mark = f"{ctx.target} {digest_of(text)}"
        if standing.told_lifted.get(name) == mark:
            continue
        said = DefinitionPost(pod=ctx.pod, target=ctx.target, name=name, text=text)
        try:
            ctx.operator.post(said)
        except Refused as error:
            if is_about_us(error):
                raise
            log.error("the operator does not take %s: %s", name, error)
        standing.told_lifted[name] = mark
        told += 1
    return told


def _texts(lifted: list[Lifted]) -> dict[str, str]:
    """Return the report of each definition; without those that are too long."""
    from retuned.lifting.store_records import LiftedRecord

    found: dict[str, str] = {}
    for each in lifted[:MAX_DEFINITIONS]:
        try:
            text = LiftedRecord.of(_shortened(each)).model_dump_json()
        except ValidationError as error:
            log.error("%s is not reported: %d faults", each.own.name, error.error_count())
            continue
        if len(text) > MAX_DEFINITION_CHARS:
            log.warning("%s has %d characters and is not reported", each.own.name, len(text))
            continue
        found[each.own.name] = text
    return found


def _shortened(lifted: Lifted) -> Lifted:
    order = sorted(range(len(lifted.workloads)), key=lambda at: -lifted.workloads[at].weight)
    kept = sorted(order[:_MAX_SHAPES])
    return replace(
        lifted,
        workloads=tuple(lifted.workloads[at] for at in kept),
        grids=tuple(lifted.grids[at] for at in kept),
    )
