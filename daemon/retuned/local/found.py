"""What experiments have found so far, read back from the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import ValidationError

from retuned.adapters.lab_wire import FindingRecord
from retuned.contract import Digest, Solution
from retuned.local.context import Context, Kind
from retuned.ports import Finding, Store
from retuned.stages.verdict import Status

log = logging.getLogger(__name__)


def findings(ctx: Context, experiment: str) -> Sequence[Finding]:
    """Return every finding of an experiment that can be understood, oldest first."""
    found = []
    for stored in ctx.store.list(Kind.FINDING, prefix=f"{experiment}/"):
        try:
            found.append(FindingRecord.stored(stored.body).unwrap())
        except ValidationError as error:  # never proposed, and it stops no other
            log.error("finding %s is left out, it cannot be understood: %s", stored.id, error)
    return found


def found_solution(store: Store, digest: Digest) -> Solution | None:
    """Return a variant that an experiment tried; None if none did."""
    for id in store.ids(Kind.FINDING):
        stored = store.get(Kind.FINDING, id) if id.endswith(f"/{digest}") else None
        if stored is None:
            continue
        try:
            return Solution.model_validate(stored.body.get("solution"))
        except ValidationError as error:
            log.error("finding %s is left out, it cannot be understood: %s", id, error)
    return None


def best_finding(found: Sequence[Finding]) -> Finding | None:
    """Return the promotable finding that saves most for sure; None if there is none.

    What counts is time, not the ratio: twice as fast at a shape that is rare saves little.
    """
    promoted = [f for f in found if f.verdict.status is Status.PROMOTE]
    return max(promoted, key=saved_us, default=None)


def saved_us(finding: Finding) -> float:
    """Microseconds that a finding saves per second of traffic, by its lower bound."""
    verdict = finding.verdict
    inside = [shape for shape in verdict.shapes if verdict.guard.allows(shape.axes)]
    spent = sum(shape.weight * shape.incumbent_us for shape in inside)
    return spent * (1.0 - 1.0 / max(lower_bound(finding), 1.0))


def lower_bound(finding: Finding) -> float:
    """Return the lower bound of a finding's speedup; 0 where it was not timed."""
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


def winners(ctx: Context, definition: str) -> list[Finding]:
    """Return what was won on kernels of the same family, this one included."""
    family = ctx.catalog.family(definition)
    plans = [
        stored.id
        for stored in ctx.store.list(Kind.EXPERIMENT)
        if ctx.catalog.family(str(stored.body.get("definition"))) == family
    ]
    bests = (best_finding(findings(ctx, plan)) for plan in plans)
    return [best for best in bests if best is not None]
