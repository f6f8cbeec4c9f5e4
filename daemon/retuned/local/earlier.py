"""What other experiments found on the same operator: what holds still, and what is only a hint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from retuned.contract import Digest, Solution
from retuned.errors import UnreadableInput
from retuned.lab.generators.porting import Earlier
from retuned.local.context import Kind
from retuned.ports import Finding, Store
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Verdict

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
    for stored in store.list(Kind.EXPERIMENT, limit=_EXPERIMENTS):
        definition = str(stored.body.get("definition", ""))
        if stored.id == plan.id or not wanted or family(definition) != wanted:
            continue
        environment = str(stored.body["environment"])
        for record in store.list(Kind.FINDING, prefix=f"{stored.id}/"):
            finding = _finding(record.body)
            here = environment == plan.environment
            arch = "" if here else _arch(store, finding.verdict.evidence)
            found.append(
                Earlier(
                    finding=finding,
                    environment=environment,
                    arch=arch,
                    workloads=ExperimentPlan.model_validate(stored.body).workloads,
                )
            )
    return found


def _finding(body: Any) -> Finding:  # noqa: ANN401 - JSON
    return Finding(
        solution=Solution.model_validate(body["solution"]),
        verdict=Verdict.model_validate(body["verdict"]),
        seconds=float(body["seconds"]),
    )


def _arch(store: Store, evidence: Digest | None) -> str:
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
