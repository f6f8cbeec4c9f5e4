"""What controllers do to the cluster: each write may be repeated.

A status is written only over the version that was read. Names of children follow from their
purpose, and "already exists" is a success. Deleting an absent object is a success too.

Changes of phase are counted where they are written: once, by the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from retuned.api.proposal import Step
from retuned.api.values import TRACEPARENT, ApiModel
from retuned.control import PageOnCall
from retuned.control.jobs import device_seconds
from retuned.ports import Clock, Spans, Telemetry
from retuned.telemetry.labels import kebab
from retuned.telemetry.spans import NoSpans
from retuned_operator.controllers.conditions import event_of
from retuned_operator.controllers.ports import KubernetesEvent, Writes
from retuned_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from retuned_operator.kube.resources import EVENTS, JOBS, TARGETS, Obj, Resource
from retuned_operator.schema import (
    ExperimentPhase,
    KernelExperiment,
    KernelExperimentStatus,
    PolicyObject,
    ProposalPhase,
    SwapDecision,
    SwapProposal,
    SwapProposalStatus,
    TuningFreeze,
    TuningTarget,
    TuningTargetStatus,
    read,
)

log = logging.getLogger(__name__)

S = TypeVar(
    "S", TuningTarget, PolicyObject, KernelExperiment, SwapProposal, SwapDecision, TuningFreeze
)


class WriteCache(Protocol):
    """Takes in what was just written, until the caches show it."""

    def wrote(self, resource: Resource, body: Obj) -> None:
        """Remember an object as the API server has returned it."""
        ...


class ClusterWriter:
    """The writes of controllers.

    Parameters
    ----------
    api
        The API server, guarded by the lease.
    memory
        Told of every write.
    clock
        Dates of Events.
    telemetry
        Counts what people are woken for.
    spans
        What is being done, for traces; off by default.
    """

    def __init__(
        self,
        api: Writes,
        *,
        memory: WriteCache,
        clock: Clock,
        telemetry: Telemetry,
        spans: Spans | None = None,
    ) -> None:
        self.spans = spans or NoSpans()
        self._api = api
        self._memory = memory
        self._clock = clock
        self._telemetry = telemetry

    def status(self, resource: Resource, seen: S, status: ApiModel) -> S:
        """Write the status of an object as it was seen; nothing is written where it is the same.

        Raises
        ------
        ApiError
            `Conflict` if another client wrote since the read, or any other.
        """
        if status == seen.status:
            return seen
        if isinstance(status, KernelExperimentStatus | SwapProposalStatus):
            carried = self.spans.carried()
            status = status.model_copy(update={"traceparent": carried}) if carried else status
        metadata = seen.metadata
        body = self._api.patch_status(
            resource,
            metadata.name,
            status=status.model_dump(mode="json", by_alias=True, exclude_none=True),
            namespace=metadata.namespace,
            version=metadata.resource_version,
        )
        self._memory.wrote(resource, body)
        return read(type(seen), body)

    def make(self, resource: Resource, body: Mapping[str, Any]) -> None:
        """Create a child whose name follows from its purpose; an existing one is the same one.

        It carries the span that is open.
        """
        carried = self.spans.carried()
        if carried:
            metadata = body["metadata"]
            notes = {**metadata.get("annotations", {}), TRACEPARENT: carried}
            body = {**body, "metadata": {**metadata, "annotations": notes}}
        try:
            self._memory.wrote(resource, self._api.create(resource, body))
        except AlreadyExists:
            log.debug("%s %s is there", resource.plural, body["metadata"]["name"])

    def suspend_job(self, name: str, *, namespace: str, suspend: bool) -> None:
        """Hold a Job back, or let it go; one that is gone needs neither."""
        change = {"spec": {"suspend": suspend}}
        try:
            body = self._api.patch(JOBS, name, change=change, namespace=namespace)
        except NotFound:
            return
        self._memory.wrote(JOBS, body)

    def delete(self, resource: Resource, name: str, *, namespace: str, uid: str = "") -> None:
        """Delete an object; one that is gone, or is another one by now, is left alone."""
        try:
            self._api.delete(resource, name, namespace=namespace, uid=uid)
        except NotFound:
            return
        except Conflict:
            log.info("%s %s/%s is another one by now", resource.plural, namespace, name)

    def raw_status(self, resource: Resource, body: Obj, status: Mapping[str, Any]) -> None:
        """Write the status of an object that cannot be read; nothing where it is the same."""
        if body.get("status") == status:
            return
        metadata = body["metadata"]
        after = self._api.patch_status(
            resource,
            metadata["name"],
            status=status,
            namespace=metadata.get("namespace", ""),
            version=metadata.get("resourceVersion", ""),
        )
        self._memory.wrote(resource, after)

    def finalizers(self, resource: Resource, body: Obj, finalizers: Sequence[str]) -> Obj:
        """Write what must be done before an object may go; for this version of it only."""
        metadata = body["metadata"]
        change = {
            "metadata": {
                "finalizers": list(finalizers),
                "resourceVersion": metadata.get("resourceVersion", ""),
            }
        }
        name, namespace = metadata["name"], metadata.get("namespace", "")
        after = self._api.patch(resource, name, change=change, namespace=namespace)
        self._memory.wrote(resource, after)
        return after

    def change_target(
        self, seen: TuningTarget, change: Callable[[TuningTargetStatus], TuningTargetStatus]
    ) -> TuningTarget:
        """Change the status of a target as it is now, and return it; it may be newer than `seen`.

        Raises
        ------
        ApiError
            `Conflict` if another client wrote since the read, or any other.
        """
        metadata = seen.metadata
        body = self._api.get(TARGETS, metadata.name, namespace=metadata.namespace)
        current = read(TuningTarget, body)
        if current.metadata.uid != metadata.uid:
            raise Conflict(f"tuningtargets {seen.full_name} is another one by now", status=409)
        return self.status(TARGETS, current, change(current.status))

    def say(self, *said: KubernetesEvent) -> None:
        """Leave Events for people; that one cannot be left holds nothing up."""
        for each in said:
            body = event_of(each, now=self._clock.now())
            try:
                self._api.create(EVENTS, body)
            except AlreadyExists:
                continue
            except ApiError as error:
                log.warning("no event %s: %s", each.reason, error)

    def page(self, resource: SwapProposal, page: PageOnCall) -> None:
        """Page the person on call, by a counter that an alert reads."""
        log.error("%s: %s: %s", resource.target, page.reason, page.detail)
        self._telemetry.count("retuned_pages_total", reason=page.reason)


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
    """Whether a pod ran; a short Job may end before its run is observed."""
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
