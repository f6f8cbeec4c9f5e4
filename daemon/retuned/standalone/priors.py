"""What stored findings make believe of an operator's kernels, read back as priors.

A prior says in which order variants are tried; what is swapped in is measured. So whatever of the
history cannot be read is left out, and ages count from the experiment's own beginning: a plan that
is resumed begins with the same beliefs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.lab.generators.prior_fit import Past, PastTurn, learn_priors
from retuned.lab.generators.priors import Priors
from retuned.ports import Store, Stored
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.standalone.context import RecordKind
from retuned.standalone.findings import arch_of, stored_findings

log = logging.getLogger(__name__)

MOST_EXPERIMENTS = 48
"""Most earlier experiments that a belief rests on, the newest of the operator."""
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
    """Return what is believed at the beginning of an experiment; None where nothing is.

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
