"""What experiments have found so far, read back from the store.

What other experiments found on the same operator: what holds still, and what is only a hint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from retuned.contract import Digest, Solution
from retuned.control.outcome import best_finding
from retuned.errors import UnreadableInput
from retuned.experiment.messages import FindingRecord
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Finding, Store
from retuned.stages.experiment import ExperimentPlan
from retuned.standalone.context import Context, RecordKind

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


_EXPERIMENTS = 24
"""Most earlier experiments that are read, the newest."""


def earlier_findings(
    store: Store, plan: ExperimentPlan, *, family: Callable[[str], str]
) -> Sequence[Earlier]:
    """Return what earlier experiments found on kernels of the same operator, oldest first.

    Parameters
    ----------
    store
        Where findings are.
    plan
        The experiment to come; its own findings are left out.
    family
        Names the operator of a definition; empty where it is not known.
    """
    wanted = family(plan.definition)
    found: list[Earlier] = []
    for stored in store.list(RecordKind.EXPERIMENT, limit=_EXPERIMENTS):
        definition = str(stored.body.get("definition", ""))
        if stored.id == plan.id or not wanted or family(definition) != wanted:
            continue
        try:
            done = ExperimentPlan.model_validate(stored.body)
        except ValidationError as error:
            log.error("experiment %s is left out, it cannot be understood: %s", stored.id, error)
            continue
        found += _found(store, done, environment=plan.environment)
    return found


def _found(store: Store, done: ExperimentPlan, *, environment: Digest) -> Iterator[Earlier]:
    """Yield what one experiment found, with where that was."""
    for finding in stored_findings(store, done.id):
        here = done.environment == environment
        yield Earlier(
            finding=finding,
            environment=done.environment,
            arch="" if here else arch_of(store, finding.verdict.evidence),
            workloads=done.workloads,
        )


def stored_findings(store: Store, experiment: str) -> Iterator[Finding]:
    """Yield what one experiment found; a record that cannot be understood is left out."""
    for record in store.list(RecordKind.FINDING, prefix=f"{experiment}/"):
        try:
            yield FindingRecord.stored(record.body).unwrap()
        except ValidationError as error:
            log.error("finding %s is left out, it cannot be understood: %s", record.id, error)


def arch_of(store: Store, evidence: Digest | None) -> str:
    """Return the architecture that evidence names; empty where it names none.

    Only a hint for a translation: whether the evidence is signed does not matter here.
    """
    if evidence is None:
        return ""
    try:
        body = json.loads(store.get_blob(evidence))
        document = json.loads(body["payload"]) if "payload" in body else body
        return str(document["environment"]["arch"])
    except (UnreadableInput, ValueError, KeyError, TypeError):
        return ""
