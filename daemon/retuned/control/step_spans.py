"""Spans of steps: which span a step is, from the status before and after. Pure.

Statuses change for many small reasons; only a change that a person would report is a span.
"""

from __future__ import annotations

from dataclasses import dataclass

from retuned.api.experiment import JobRole, KernelExperiment, KernelExperimentStatus
from retuned.api.proposal import PodState, ProposalPhase, SwapProposal, SwapProposalStatus
from retuned.api.values import TRACEPARENT
from retuned.telemetry.labels import kebab
from retuned.telemetry.spans import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """One span."""

    stage: str
    """Its name."""
    about: dict[str, Value]
    """Its attributes."""
    since_s: float = 0.0
    """How long ago its work began, seconds."""


def last_span(resource: KernelExperiment | SwapProposal) -> str:
    """Return the span of the last write of an object; empty without one."""
    return resource.status.traceparent or resource.metadata.annotations.get(TRACEPARENT, "")


def of_proposal(resource: SwapProposal, after: SwapProposalStatus) -> StepSpan | None:
    """Return the span of a step of a proposal; None if the step makes no span."""
    before = resource.status
    told = _told(after) - _told(before)
    swaps = sum(wants is PodState.SWAP for _, wants, _ in told)
    goes_back = after.phase.is_going_back and not before.phase.is_going_back
    about: dict[str, Value] = {
        "proposal": f"{resource.metadata.namespace}/{resource.metadata.name}",
        "target": resource.target,
        "kernel": resource.spec.kernel,
        "phase": kebab(str(after.phase)),
    }
    if after.reason:
        about["reason"] = after.reason
    if goes_back or (told and not swaps):
        return StepSpan(stage="rollback", about=about | {"pods": len(told)})
    if swaps:
        return StepSpan(stage="swap", about=about | {"pods": swaps})
    if before.phase is not after.phase and _is_watched(before.phase, after.phase):
        return StepSpan(stage="watch", about=about)
    if before.phase is not after.phase or _gate(before) != _gate(after):
        state, reason = _gate(after)
        return StepSpan(stage="gate", about=about | {"state": state, "gate_reason": reason})
    return None


def of_experiment(
    resource: KernelExperiment, after: KernelExperimentStatus, *, now_s: float
) -> StepSpan | None:
    """Return the span of a step of an experiment; None if the step makes no span.

    Parameters
    ----------
    now_s
        The time, seconds since 1970.
    """
    before = resource.status
    about: dict[str, Value] = {
        "experiment": f"{resource.metadata.namespace}/{resource.metadata.name}",
        "kernel": resource.spec.kernel.name,
        "phase": kebab(str(after.phase)),
    }
    known = {ref.result for ref in before.job_refs}
    came = [ref for ref in after.job_refs if ref.result is not None and ref.result not in known]
    if came:
        searched = came[-1].role is JobRole.SEARCH
        begin = after.started_at if searched else None  # other Jobs have no recorded start
        return StepSpan(
            stage="lab",
            about=about
            | {
                "role": str(came[-1].role),
                "job": came[-1].name,
                "tried": after.trials.total,
                "correct": after.trials.correct,
            },
            since_s=max(0.0, now_s - begin.timestamp()) if begin is not None else 0.0,
        )
    if before.phase is not after.phase:
        return StepSpan(stage="experiment", about=about)
    return None


def _told(status: SwapProposalStatus) -> set[tuple[str, PodState, int]]:
    rollout = status.rollout
    return {(each.uid, each.wants, each.epoch) for each in rollout.pods} if rollout else set()


def _gate(status: SwapProposalStatus) -> tuple[str, str]:
    gate = status.gate
    return (str(gate.state), str(gate.reason)) if gate is not None else ("", "")


def _is_watched(before: ProposalPhase, after: ProposalPhase) -> bool:
    return before.is_under_way or before.is_going_back or after.is_under_way
