"""Outcome of an experiment: what its findings mean for its hypothesis. Pure.

The daemon of one machine and the operator both use it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from retuned.contract import Workload
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.hypothesis import (
    Attempt,
    Hypothesis,
    HypothesisSettings,
    Refinement,
    StopReason,
    consider,
    hopeless,
    tally,
)
from retuned.stages.proposal import covered_share
from retuned.stages.verdict import ShapeResult, Status

ENOUGH = 0.5
"""Part of the expected saving that ends the search for a better variant."""


def conclude(
    plan: ExperimentPlan,
    found: Sequence[Finding],
    *,
    belief: Hypothesis,
    first_saving: float,
    structures: Sequence[str],
    settings: HypothesisSettings | None = None,
) -> Refinement | None:
    """Decide whether and where to try again; None if the findings are sufficient.

    Parameters
    ----------
    plan
        The experiment.
    found
        All its findings.
    belief
        The hypothesis that it tested.
    first_saving
        Expected saving before any attempt; later hypotheses are discounted.
    structures
        Source structures of the definition.
    settings
        When to stop.
    """
    best = best_finding(found)
    if best is not None and _saving(best, belief.share) >= ENOUGH * first_saving:
        return None
    return consider(belief, attempt_of(plan, found, best), structures=structures, settings=settings)


def searched(found: Sequence[Finding], turns: Sequence[Turn]) -> Refinement | None:
    """Return why the search of a declared space is not repeated; None if it found a winner.

    Parameters
    ----------
    found
        All findings of the experiment.
    turns
        Its turns: one for each size class, with its result.
    """
    if best_finding(found) is not None:
        return None
    last = found[-1].verdict if found else None
    sentence = f"the table is refused: {last.reason} {last.detail}" if last else ""
    sentence = sentence or "; ".join(turn.because for turn in turns) or "nothing was searched"
    return Refinement(hypothesis=None, stop=StopReason.SEARCHED, outlook=None, sentence=sentence)


def code_of(answer: Refinement | None) -> str:
    """Return what follows from an experiment, as a stable code."""
    if answer is None:
        return "enough"
    return "refined" if answer.stop is None else str(answer.stop)


def best_finding(found: Sequence[Finding]) -> Finding | None:
    """Return the promotable finding with the largest certain saving; None without one.

    Time counts, not the ratio: twice as fast at a rare shape saves little.
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
    """Return the lower bound of a finding's speedup; 0 if it was not timed."""
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


def _saving(finding: Finding, share: float) -> float:
    covered = share * covered_share(finding.verdict)
    return covered * (1.0 - 1.0 / max(lower_bound(finding), 1.0))


def attempt_of(plan: ExperimentPlan, found: Sequence[Finding], best: Finding | None) -> Attempt:
    """Summarise an experiment: its reason, what did not work, where it lost and what it cost."""
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
