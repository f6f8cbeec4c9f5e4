"""What experiments have found so far, read back from the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import ValidationError

from retuned.adapters.lab_wire import FindingRecord
from retuned.attempts import best_finding
from retuned.contract import Digest, Solution
from retuned.local.context import Context, RecordKind
from retuned.ports import Finding, Store

log = logging.getLogger(__name__)


def findings(ctx: Context, experiment: str) -> Sequence[Finding]:
    """Return every finding of an experiment that can be understood, oldest first."""
    found = []
    for stored in ctx.store.list(RecordKind.FINDING, prefix=f"{experiment}/"):
        try:
            found.append(FindingRecord.stored(stored.body).unwrap())
        except ValidationError as error:  # never proposed, and it stops no other
            log.error("finding %s is left out, it cannot be understood: %s", stored.id, error)
    return found


def found_solution(store: Store, digest: Digest) -> Solution | None:
    """Return a variant that an experiment tried; None if none did."""
    for id in store.ids(RecordKind.FINDING):
        stored = store.get(RecordKind.FINDING, id) if id.endswith(f"/{digest}") else None
        if stored is None:
            continue
        try:
            return Solution.model_validate(stored.body.get("solution"))
        except ValidationError as error:
            log.error("finding %s is left out, it cannot be understood: %s", id, error)
    return None


def winners(ctx: Context, definition: str) -> list[Finding]:
    """Return what was won on kernels of the same family, this one included."""
    family = ctx.catalog.family(definition)
    plans = [
        stored.id
        for stored in ctx.store.list(RecordKind.EXPERIMENT)
        if ctx.catalog.family(str(stored.body.get("definition"))) == family
    ]
    bests = (best_finding(findings(ctx, plan)) for plan in plans)
    return [best for best in bests if best is not None]
