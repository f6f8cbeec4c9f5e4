"""From a finding of the lab to traces: one per shape, in the words of FlashInfer-Bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from retuned.contract import Environment, Trace, TraceStatus, Workload
from retuned.ports import Finding
from retuned.stages.verdict import Reason

_WRONG = TraceStatus.INCORRECT_NUMERICAL
_BROKEN = TraceStatus.RUNTIME_ERROR
_UNBUILT = TraceStatus.COMPILE_ERROR
STATUS: Mapping[str, TraceStatus] = {
    Reason.FASTER: TraceStatus.PASSED,
    Reason.SLOWER: TraceStatus.PASSED,
    Reason.NOT_FASTER_ENOUGH: TraceStatus.PASSED,
    Reason.WITHIN_NOISE: TraceStatus.PASSED,
    Reason.TOO_FEW_SAMPLES: TraceStatus.PASSED,
    Reason.LOST_SEARCH: TraceStatus.PASSED,
    Reason.CONTRACT: _UNBUILT,
    Reason.COMPILE_FAILED: _UNBUILT,
    Reason.BINARY_AUDIT: _UNBUILT,
    Reason.OVER_LIMIT: _UNBUILT,
    Reason.CRASHED: _BROKEN,
    Reason.OUT_OF_MEMORY: _BROKEN,
    Reason.OUT_OF_BOUNDS: _BROKEN,
    Reason.INPUT_MODIFIED: _BROKEN,
    Reason.IMPOSSIBLY_FAST: _BROKEN,
    Reason.CLOCKS_DISAGREE: _BROKEN,
    Reason.TIMED_OUT: TraceStatus.TIMEOUT,
    Reason.OUTPUT_NOT_WRITTEN: _WRONG,
    Reason.NONDETERMINISTIC: _WRONG,
    Reason.WRONG_OUTPUT: _WRONG,
    Reason.NAN_MISMATCH: _WRONG,
    Reason.TIMED_OUTPUT_WRONG: _WRONG,
    "row-dependent": _WRONG,
}
"""A reason that is not here says nothing about the solution: no trace is made of it."""


def traces_of(
    finding: Finding,
    workloads: Sequence[Workload],
    *,
    environment: Environment,
    measured_at: datetime,
) -> tuple[Trace, ...]:
    """Return the outcome at each shape.

    A solution that passed has a trace where it was measured against the incumbent in fresh
    processes; one that lost the search has none, for there is no number that is fit to print.

    Parameters
    ----------
    finding
        What the lab found.
    workloads
        Shapes of the experiment.
    environment
        Where it was measured.
    measured_at
        When, with a zone.
    """
    verdict = finding.verdict
    status = STATUS.get(verdict.reason)
    if status is None:
        return ()
    shared = {
        "definition": finding.solution.definition,
        "solution": finding.solution.name,
        "candidate": verdict.candidate,
        "incumbent": verdict.incumbent,
        "status": status,
        "reason": str(verdict.reason),
        "gate": verdict.gate,
        "detail": verdict.detail[:4000],
        "error_ratio": verdict.error_ratio,
        "environment": environment,
        "timestamp": measured_at.isoformat(),
    }
    if status is not TraceStatus.PASSED:
        return tuple(Trace.model_validate({**shared, "workload": each}) for each in workloads)
    return tuple(
        Trace.model_validate(
            {
                **shared,
                "workload": Workload(
                    definition=finding.solution.definition, axes=shape.axes, weight=shape.weight
                ),
                "latency_us": shape.candidate_us,
                "reference_latency_us": shape.incumbent_us,
                "speedup_factor": shape.speedup.point,
                "speedup_bounds": (shape.speedup.lower, shape.speedup.upper),
                "confidence": shape.speedup.confidence,
            }
        )
        for shape in verdict.shapes
    )
