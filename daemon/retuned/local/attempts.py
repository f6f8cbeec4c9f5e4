"""What the findings of an experiment say to the belief that it tested."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from retuned.contract import Workload
from retuned.local.found import lower_bound
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.hypothesis import Attempt, hopeless, tally
from retuned.stages.verdict import ShapeResult


def attempt_of(plan: ExperimentPlan, found: Sequence[Finding], best: Finding | None) -> Attempt:
    """Sum an experiment up: its reason, what did not work, where it lost and what it cost.

    Parameters
    ----------
    plan
        The experiment.
    found
        All its findings.
    best
        The promotable finding that saves most; None if there is none.
    """
    if not found:
        return Attempt(experiment=plan.id, reason="no-candidates")
    timed = [finding for finding in found if finding.verdict.speedup is not None]
    nearest = max(timed, key=lower_bound) if timed else found[-1]
    lost, share = _lost(plan, found)
    return Attempt(
        experiment=plan.id,
        reason="short-of-belief" if best is not None else str(nearest.verdict.reason),
        detail=(best or nearest).verdict.detail,
        seconds=sum(finding.seconds for finding in found),
        reasons=tally([str(finding.verdict.reason) for finding in found]),
        hopeless=hopeless(_outcomes(found)),
        lost=lost,
        lost_share=share,
    )


def _outcomes(found: Sequence[Finding]) -> Mapping[str, Mapping[str, int]]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for finding in found:
        reasons[finding.solution.structure].append(str(finding.verdict.reason))
    return {structure: tally(codes) for structure, codes in reasons.items()}


def _lost(plan: ExperimentPlan, found: Sequence[Finding]) -> tuple[tuple[Workload, ...], float]:
    """Return shapes at which every finalist was surely slower, and their share of the time."""
    measured: dict[tuple[tuple[str, int], ...], list[ShapeResult]] = defaultdict(list)
    for finding in found:
        for shape in finding.verdict.shapes:
            measured[tuple(sorted(shape.axes.items()))].append(shape)
    lost = {key for key, shapes in measured.items() if all(s.speedup.upper < 1.0 for s in shapes)}
    spent = {key: shapes[0].weight * shapes[0].incumbent_us for key, shapes in measured.items()}
    total = sum(spent.values())
    if not lost or total <= 0.0:
        return (), 0.0
    workloads = tuple(w for w in plan.workloads if tuple(sorted(w.axes.items())) in lost)
    return workloads, min(1.0, sum(spent[key] for key in lost) / total)
