"""Findings of experiments, read back from the store: what holds still, hints and priors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from retuned.contract import Digest, Solution
from retuned.control.outcome import best_finding
from retuned.errors import UnreadableInput
from retuned.experiment.messages import FindingRecord
from retuned.lab.generators.prior_fit import Past, PastTurn, learn_priors
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Finding, Store, Stored
from retuned.stages.experiment import ExperimentPlan, Turn
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


MOST_EXPERIMENTS = 48
"""Most earlier experiments that priors use, the newest of the operator."""
_LOOKED_AT = 400
"""Most experiments that are looked through for them."""
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabEnvironment:
    """Where, and in which language, variants are to run."""

    language: str
    """Language of the variants."""
    environment: Digest
    """Digest of the environment."""
    arch: str
    """Its architecture; empty where it is not known."""


def priors_for(
    store: Store, plan: ExperimentPlan, *, family: Callable[[str], str], language: str, arch: str
) -> Priors | None:
    """Return the priors at the beginning of an experiment; None without any.

    Parameters
    ----------
    store
        Where findings are.
    plan
        The experiment to come; what it found itself, before an interruption, is left out.
    family
        Names the operator of a definition; empty where it is not known.
    language, arch
        Language of the variants, and architecture of this machine.
    """
    wanted = family(plan.definition)
    if not wanted:
        return None
    stored = store.get(RecordKind.EXPERIMENT, plan.id)
    done = [
        each
        for each in of_family(store, wanted, family=family)
        if each.id != plan.id and (stored is None or each.created_at <= stored.created_at)
    ]
    if not done:
        return None
    place = LabEnvironment(language=language, environment=plan.environment, arch=arch)
    now = stored.created_at if stored is not None else done[-1].created_at
    found = learned(store, done, family=wanted, place=place, now=now)
    return found if found.known or found.generators else None


def of_family(store: Store, wanted: str, *, family: Callable[[str], str]) -> list[Stored]:
    """Return the newest experiments on kernels of an operator, oldest first."""
    found = [
        each
        for each in store.list(RecordKind.EXPERIMENT, limit=_LOOKED_AT)
        if family(str(each.body.get("definition", ""))) == wanted
    ]
    return found[-MOST_EXPERIMENTS:]


def learned(
    store: Store, done: Sequence[Stored], *, family: str, place: LabEnvironment, now: datetime
) -> Priors:
    """Return what some experiments say of an operator.

    Parameters
    ----------
    store
        Where findings are.
    done
        Records of the experiments.
    family
        The operator.
    place
        Where variants are to run.
    now
        Moment that ages count to.
    """
    past: list[Past] = []
    turns: list[PastTurn] = []
    for each in done:
        age_days = max((now - each.created_at).total_seconds() / _DAY_S, 0.0)
        past += _past(store, each, place=place, age_days=age_days)
        turns += [PastTurn(turn=turn, age_days=age_days) for turn in _turns(store, each.id)]
    return learn_priors(
        past,
        family=family,
        language=place.language,
        environment=place.environment,
        arch=place.arch,
        turns=turns,
    )


def _past(store: Store, done: Stored, *, place: LabEnvironment, age_days: float) -> Iterator[Past]:
    """Yield what one experiment found; where it ran elsewhere, on which device is looked up."""
    environment = str(done.body.get("environment", ""))
    arch = place.arch if environment == place.environment else ""
    for finding in stored_findings(store, done.id):
        if not arch:
            arch = arch_of(store, finding.verdict.evidence)
        yield Past(
            finding=finding,
            experiment=done.id,
            environment=environment,
            arch=arch,
            age_days=age_days,
        )


def _turns(store: Store, experiment: str) -> list[Turn]:
    stored = store.get(RecordKind.TURNS, experiment)
    if stored is None:
        return []
    try:
        return [Turn.model_validate(each) for each in stored.body["turns"]]
    except (ValidationError, KeyError, TypeError) as error:
        log.error("turns of %s are left out, they cannot be understood: %s", experiment, error)
        return []
