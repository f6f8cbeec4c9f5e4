"""What other experiments found on the same operator: what holds still, and what is only a hint."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from retuned.adapters.lab_wire import FindingRecord
from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.lab.generators.porting import Earlier
from retuned.local.context import RecordKind
from retuned.ports import Finding, Store
from retuned.stages.experiment import ExperimentPlan

log = logging.getLogger(__name__)

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
