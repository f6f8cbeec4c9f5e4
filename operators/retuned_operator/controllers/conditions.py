"""The visible result of a step: conditions of the object, and Events. Pure.

Both follow from the status alone, so that a step that is repeated after a crash has the same
result, and no Event is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from retuned.api.values import API_VERSION, ApiModel, camel, with_condition
from retuned.stages.gate import GateState
from retuned_operator.controllers.ports import KubernetesEvent
from retuned_operator.kube.resources import EXPERIMENTS, PROPOSALS
from retuned_operator.manifests.names import MANAGER, child_name
from retuned_operator.schema import (
    Condition,
    ConditionStatus,
    ExperimentPhase,
    KernelExperiment,
    KernelExperimentStatus,
    ProposalPhase,
    SwapProposal,
    SwapProposalStatus,
)

MAX_NOTE = 1000
"""Characters of an Event's note; the API server takes 1024."""
_P = ProposalPhase
_BAD = frozenset(
    {_P.ROLLING_BACK, _P.ROLLBACK_FAILED, _P.ROLLED_BACK, _P.INVALID, _P.EXPIRED, _P.PAUSED}
)
_CHECKED = frozenset({_P.PENDING, _P.VALIDATING})


def condition(
    type: str,
    yes: bool | None,
    *,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> Condition:
    """Return a condition; None for `yes` is unknown."""
    status = ConditionStatus.UNKNOWN
    if yes is not None:
        status = ConditionStatus.TRUE if yes else ConditionStatus.FALSE
    return Condition(
        type=type,
        status=status,
        observed_generation=generation,
        last_transition_time=now,
        reason=camel(reason),
        message=message[:MAX_NOTE],
    )


def with_proposal_conditions(
    resource: SwapProposal, status: SwapProposalStatus, *, now: datetime
) -> SwapProposalStatus:
    """Return the status with what is true of the proposal."""
    phase, reason = status.phase, status.reason or "unknown"
    gated, window = status.gate, status.window
    said: dict[str, tuple[bool | None, str, str]] = {
        "Validated": (
            None if phase in _CHECKED else phase is not _P.INVALID,
            reason if phase is _P.INVALID else "evidence-carries",
            status.detail if phase is _P.INVALID else "",
        ),
        "Promoted": (phase is _P.PROMOTED, reason, status.detail),
        "RolledBack": (phase is _P.ROLLED_BACK, reason, status.detail),
    }
    if gated is not None:
        agreed = gated.state is GateState.APPROVED
        said["Approved"] = (agreed, str(gated.reason), gated.sentence)
    if window is not None:
        said["WindowOpen"] = (window.open, "open" if window.open else "closed", "")
    if status.rollout is not None:
        bad = phase.is_going_back or phase in (_P.ROLLED_BACK, _P.PAUSED)
        said["CanaryHealthy"] = (not bad, reason, status.detail)
    conditions = status.conditions
    for type, (yes, code, message) in said.items():
        new = condition(
            type,
            yes,
            reason=code,
            message=message,
            generation=resource.metadata.generation,
            now=now,
        )
        conditions = with_condition(conditions, new)
    return status.model_copy(update={"conditions": conditions})


def proposal_events(
    resource: SwapProposal, before: SwapProposalStatus, after: SwapProposalStatus
) -> tuple[KubernetesEvent, ...]:
    """Return an Event for each change of phase that a step brought."""
    fresh = [step for step in after.history if step not in before.history]
    return tuple(
        KubernetesEvent(
            resource=PROPOSALS,
            about=resource,
            reason=str(step.to),
            note=f"{step.from_} to {step.to}: {step.reason}"
            + (f" ({after.detail})" if step is after.history[-1] and after.detail else ""),
            warning=step.to in _BAD,
            once=f"{step.at.isoformat()} {step.to}",
        )
        for step in fresh
    )


def with_experiment_conditions(
    resource: KernelExperiment, status: KernelExperimentStatus, *, now: datetime
) -> KernelExperimentStatus:
    """Return the status with what is true of the experiment."""
    over = status.phase.is_terminal
    won = status.phase is ExperimentPhase.SUCCEEDED
    reason = status.reason or "unknown"
    conditions = status.conditions
    for type, yes in (("Complete", over), ("Succeeded", won if over else None)):
        new = condition(
            type,
            yes,
            reason=reason,
            message=status.detail,
            generation=resource.metadata.generation,
            now=now,
        )
        conditions = with_condition(conditions, new)
    return status.model_copy(update={"conditions": conditions})


def experiment_events(
    resource: KernelExperiment, before: KernelExperimentStatus, after: KernelExperimentStatus
) -> tuple[KubernetesEvent, ...]:
    """Return the Event of a change of phase or a lost result, and of Jobs that are done without."""
    given_up = _given_up(resource, before, after)
    stays = before.phase is after.phase
    if stays and after.lost_results == before.lost_results:
        return given_up
    bad = after.phase in (ExperimentPhase.FAILED, ExperimentPhase.REFUSED)
    way = f"stays {after.phase}" if stays else f"{before.phase} to {after.phase}"
    note = f"{way}: {after.reason}" + (f" ({after.detail})" if after.detail else "")
    once = f"{after.phase} {after.preemptions} {after.lost_results}"
    reason = str(after.phase)
    moved = KubernetesEvent(
        resource=EXPERIMENTS, about=resource, reason=reason, note=note, warning=bad, once=once
    )
    return (*given_up, moved)


def _given_up(
    resource: KernelExperiment, before: KernelExperimentStatus, after: KernelExperimentStatus
) -> tuple[KubernetesEvent, ...]:
    known = {ref.name for ref in before.job_refs if ref.given_up}
    return tuple(
        KubernetesEvent(
            resource=EXPERIMENTS,
            about=resource,
            reason="WentOnWithout",
            note=f"goes on without {ref.role}: {ref.given_up}",
            warning=True,
            once=ref.name,
        )
        for ref in after.job_refs
        if ref.given_up and ref.name not in known
    )


def event_of(said: KubernetesEvent, *, now: datetime) -> dict[str, Any]:
    """Return the Event as an object; the same one has the same name, so that it is there once."""
    metadata = _metadata(said.about)
    at = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": child_name("retuned", metadata["uid"], said.reason, said.once),
            "namespace": metadata.get("namespace") or "default",
        },
        "eventTime": at,
        "reportingController": f"retuned.dev/{MANAGER}",
        "reportingInstance": MANAGER,
        "action": "Reconcile",
        "reason": said.reason[:128],
        "type": "Warning" if said.warning else "Normal",
        "note": said.note[:MAX_NOTE],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": said.resource.kind,
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata["uid"],
        },
    }


def _metadata(about: ApiModel) -> Mapping[str, Any]:
    found: Mapping[str, Any] = about.model_dump(mode="json")["metadata"]
    return found
