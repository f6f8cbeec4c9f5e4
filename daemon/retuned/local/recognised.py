"""Live kernels that compute what the catalog knows: asked once, and kept with what was found.

Asking runs the kernel in a child, so the answer is written down: what was recognised is fitted
again without asking, and what was not is not asked again. Whatever fails leaves the kernel as it
was lifted.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pydantic import ValidationError

from retuned.catalog.own import OwnDefinition
from retuned.errors import RetunedError
from retuned.lifting.fitting import RECOGNISED
from retuned.lifting.lift import Lifted
from retuned.local.context import Context, RecordKind
from retuned.ports import Event

log = logging.getLogger(__name__)

_ASKED = "@asked/"


def structured(ctx: Context, lifted: Lifted) -> Lifted:
    """Return a live kernel with the catalog's structures where it is recognised; else as it is."""
    if ctx.structures is None or not lifted.own.judged_by_incumbent:
        return lifted
    name = lifted.own.name
    known = ctx.store.get(RecordKind.LIFTED, _ASKED + name)
    if known is not None:
        own = _fitted(known.body.get("fitted"))
        return lifted if own is None else _with(lifted, own)
    try:
        found = ctx.structures(lifted)
    except (RetunedError, OSError) as error:
        log.warning("%s is not asked what it computes: %s", name, error)
        return lifted
    is_new = found is not lifted
    body = {"fitted": found.own.model_dump(mode="json") if is_new else None}
    ctx.store.add(RecordKind.LIFTED, _ASKED + name, body, phase="asked")
    if is_new:
        _record_match(ctx, found)
    return found


def _fitted(body: object) -> OwnDefinition | None:
    """Read what was kept; what an older version wrote otherwise is as if it was not recognised."""
    if body is None:
        return None
    try:
        return OwnDefinition.model_validate(body)
    except ValidationError as error:
        log.warning("a fitted kernel is left out: %d fields are wrong", error.error_count())
        return None


def _with(lifted: Lifted, own: OwnDefinition) -> Lifted:
    workloads = (each.model_copy(update={"definition": own.name}) for each in lifted.workloads)
    return replace(lifted, own=own, workloads=tuple(workloads))


def _record_match(ctx: Context, found: Lifted) -> None:
    tags = [tag for tag in found.own.definition.tags if tag != RECOGNISED]
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.LIFTED,
            id=found.own.name,
            what="kernel-recognised",
            who="retuned",
            detail={"computes": tags[-1], "structures": [v.structure for v in found.own.variants]},
        )
    )
