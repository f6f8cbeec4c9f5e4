"""Changes of phase, as numbers. They are counted where they are written: once, by who leads."""

from __future__ import annotations

from retuned.metrics.labels import kebab
from retuned.ports import Telemetry
from retuned_operator.crds import (
    ExperimentPhase,
    KernelExperimentStatus,
    ProposalPhase,
    SwapProposalStatus,
)
from retuned_operator.crds.proposal_status import Step
from retuned_operator.machine.placed import device_seconds


def proposal_moved(telemetry: Telemetry, step: Step, status: SwapProposalStatus) -> None:
    """Count one change of phase of a proposal."""
    telemetry.count("retuned_swap_phases_total", phase=kebab(str(step.to)))
    reason = step.reason or status.reason
    if step.to is ProposalPhase.ROLLING_BACK:
        telemetry.count("retuned_rollbacks_total", reason=reason)
    elif step.to is ProposalPhase.ROLLBACK_FAILED:
        telemetry.count("retuned_rollbacks_failed_total", reason=reason)


def experiment_moved(
    telemetry: Telemetry, before: KernelExperimentStatus, after: KernelExperimentStatus
) -> None:
    """Count the begin of an experiment, its changes of phase, and what it cost once it is over."""
    if _has_begun(after) and not _has_begun(before):
        telemetry.count("retuned_experiments_started_total")
    if before.phase is after.phase:
        return
    telemetry.count("retuned_experiment_phases_total", phase=kebab(str(after.phase)))
    if not after.phase.is_terminal:
        return
    outcome = kebab(str(after.phase))
    telemetry.count("retuned_experiments_ended_total", outcome=outcome)
    if after.started_at is None or after.finished_at is None:
        return  # it held nothing
    took_s = max(0.0, (after.finished_at - after.started_at).total_seconds())
    telemetry.observe("retuned_experiment_duration_seconds", took_s, outcome=outcome)
    held_s = device_seconds(after.device_time, now=after.finished_at)
    telemetry.count("retuned_experiment_gpu_seconds_total", held_s)


def _has_begun(status: KernelExperimentStatus) -> bool:
    """Whether a pod ran; a short Job is over before anybody has seen it run."""
    working = (ExperimentPhase.RUNNING, ExperimentPhase.VERIFYING)
    return status.started_at is not None or status.phase in working


def is_waiting(phase: ExperimentPhase) -> bool:
    """Whether an experiment has not begun, or has to begin again.

    Examples
    --------
    >>> is_waiting(ExperimentPhase.QUEUED), is_waiting(ExperimentPhase.RUNNING)
    (True, False)
    """
    return phase in (ExperimentPhase.PENDING, ExperimentPhase.QUEUED, ExperimentPhase.PREEMPTED)
