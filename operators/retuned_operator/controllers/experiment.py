"""KernelExperiments: Jobs that are made, released, held back and cleared away."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from retuned.control import (
    CreateJob,
    DeleteJob,
    ExperimentFacts,
    ExperimentStep,
    SetSuspend,
    experiment,
    step_spans,
)
from retuned.control.facts import ExperimentAction
from retuned.errors import Refused, UsageError
from retuned.ports import Telemetry
from retuned_operator.controllers import (
    conditions,
    experiment_facts,
    job_requests,
    objects,
    writer,
)
from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.experiment_outcome import OutcomeController
from retuned_operator.controllers.ports import BY_EXPERIMENT
from retuned_operator.controllers.proposal import NOT_KNOWN_S, propose
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import CONFIG_MAPS, EXPERIMENTS, JOBS
from retuned_operator.manifests import JobRequest, JobSettings, job_objects
from retuned_operator.schema import KernelExperiment, KernelExperimentStatus, read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """One experiment with what was seen of it."""

    resource: KernelExperiment
    """As it is."""
    facts: ExperimentFacts
    """Everything else."""


class Experiments:
    """Controller; its keys are experiments, ``namespace/name``.

    All experiments of a policy share budgets, so they are reconciled one after the other.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    jobs
        How pods look.
    telemetry
        Numbers.
    """

    def __init__(
        self, world: ClusterView, acting: ClusterWriter, *, jobs: JobSettings, telemetry: Telemetry
    ) -> None:
        self._world = world
        self._acting = acting
        self._jobs = jobs
        self._telemetry = telemetry
        self._concluding = OutcomeController(world, acting, jobs=jobs, telemetry=telemetry)
        self._turn = threading.Lock()

    def reconcile(self, key: str) -> float | None:
        """Take an experiment one step further; return when to look again, seconds.

        Raises
        ------
        RetunedError
            If it could not be read, or a write was refused.
        """
        self._collect(key)
        with self._turn:
            body = self._world.caches.get(EXPERIMENTS, key)
            if body is None:
                return self._orphaned(key)
            resource = read(KernelExperiment, body)
            after_s = self._step(resource)
            if not resource.status.phase.is_terminal or after_s is not None:
                return after_s
            return self._concluding.follow(key)

    def _collect(self, key: str) -> None:
        """Bring in what its pods have left before its turn: no other waits for its node."""
        body = self._world.caches.get(EXPERIMENTS, key)
        if body is not None and not objects.is_over(body):
            self._world.ledger.collect(read(KernelExperiment, body))

    def _step(self, resource: KernelExperiment) -> float | None:
        if resource.status.phase.is_terminal:
            return self._cleared(resource)
        facts = experiment_facts.facts_of(
            self._world,
            resource,
            namespace=self._namespace(resource),
            queued=bool(self._jobs.queue),
        )
        if facts is None:
            return NOT_KNOWN_S
        facts = replace(facts, unplaced=job_requests.no_place(facts.target, self._jobs))
        return self._go(_Looked(resource=resource, facts=facts))

    def _orphaned(self, key: str) -> float | None:
        """Delete the rest of a deleted experiment: owner references do not cross namespaces."""
        jobs = self._world.caches.by(JOBS, BY_EXPERIMENT, key)
        if jobs is None or not self._world.caches.knows(EXPERIMENTS):
            return NOT_KNOWN_S
        for body in jobs:
            metadata = body["metadata"]
            name, namespace = metadata["name"], metadata.get("namespace", "")
            self._acting.delete(JOBS, name, namespace=namespace, uid=metadata.get("uid", ""))
            self._acting.delete(CONFIG_MAPS, name, namespace=namespace)
        return None

    def _cleared(self, resource: KernelExperiment) -> float | None:
        """Delete the Jobs and ConfigMaps of an experiment that has ended."""
        jobs = experiment_facts.jobs_of(self._world, resource, namespace=self._namespace(resource))
        if jobs is None:
            return NOT_KNOWN_S
        for job in jobs:  # in another namespace nothing else would take the task away
            self._acting.delete(CONFIG_MAPS, job.name, namespace=self._namespace(resource))
        facts = ExperimentFacts(jobs=jobs)
        return self._go(_Looked(resource=resource, facts=facts))

    def _go(self, looked: _Looked) -> float | None:
        """Decide, write the status, and only then act."""
        now, resource = self._world.clock.now(), looked.resource
        pipeline = job_requests.pipeline_of(resource, looked.facts.target, self._jobs)
        step = experiment.step(resource, looked.facts, now=now, pipeline=pipeline)
        requests: dict[ExperimentAction, JobRequest] = {}
        try:
            requests = self._requests(looked, step)
        except (Refused, UsageError) as error:
            step = experiment.unable(resource, looked.facts, error, now=now)
        status = conditions.with_experiment_conditions(resource, step.status, now=now)
        with self._turn_of(resource, status, now=now):
            after = self._acting.status(EXPERIMENTS, resource, status)
            self._tell(resource, status)
        for action in step.actions:
            if action in requests:
                self._make(replace(requests[action], traceparent=step_spans.last_span(after)))
            else:
                self._act(_Looked(resource=after, facts=looked.facts), action)
        return _seconds(step, now=now)

    def _turn_of(
        self, resource: KernelExperiment, status: KernelExperimentStatus, *, now: datetime
    ) -> AbstractContextManager[None]:
        """Be in the span of a step, which goes on from the last."""
        found = step_spans.of_experiment(resource, status, now_s=now.timestamp())
        if found is None:
            return nullcontext()
        return self._acting.spans.span(
            found.stage,
            after=step_spans.last_span(resource),
            since_s=found.since_s,
            about=found.about,
        )

    def _tell(self, resource: KernelExperiment, status: KernelExperimentStatus) -> None:
        for event in conditions.experiment_events(resource, resource.status, status):
            self._acting.say(event)
        writer.experiment_moved(self._telemetry, resource.status, status)

    def _act(self, looked: _Looked, action: ExperimentAction) -> None:
        namespace = self._namespace(looked.resource)
        if isinstance(action, SetSuspend):
            self._acting.suspend_job(action.job, namespace=namespace, suspend=action.suspend)
        elif isinstance(action, DeleteJob):
            uid = next((job.uid for job in looked.facts.jobs if job.name == action.job), "")
            self._acting.delete(JOBS, action.job, namespace=namespace, uid=uid)
            self._acting.delete(CONFIG_MAPS, action.job, namespace=namespace)
        else:
            self._propose(looked)

    def _requests(
        self, looked: _Looked, step: ExperimentStep
    ) -> dict[ExperimentAction, JobRequest]:
        """Return the Jobs that a step makes, so that errors appear before the status is written.

        Raises
        ------
        Refused
            If a Job cannot be made, now or later.
        TemporaryError
            If its task cannot be put together now.
        """
        target = looked.facts.target
        # the task of a Job depends on the results that count after this step
        resource = looked.resource.model_copy(update={"status": step.status})
        found: dict[ExperimentAction, JobRequest] = {}
        for action in step.actions:
            if not isinstance(action, CreateJob):
                continue
            assert target is not None, "its absence ends an experiment"
            found[action] = job_requests.request_of(
                self._world,
                resource,
                action,
                target=target,
                chosen=experiment_facts.chosen_for(resource, looked.facts.policies, target),
                settings=self._jobs,
            )
            job_objects(found[action], self._jobs)
        return found

    def _make(self, request: JobRequest) -> None:
        """Make a Job with its task, suspended, and the same after every crash."""
        task, job = job_objects(request, self._jobs)
        self._acting.make(CONFIG_MAPS, task)
        self._acting.make(JOBS, job)

    def _propose(self, looked: _Looked) -> None:
        """Write the proposal of a win; its name follows from what it is about."""
        target, resource = looked.facts.target, looked.resource
        now, results = self._world.clock.now(), looked.facts.results
        made = experiment_facts.made_for(self._world, resource)
        if made is None:
            return
        weighed = experiment_facts.weigh_again(
            self._world, resource, target, made, results=results, now=now
        )
        if weighed.proposal is not None and target is not None:
            propose(self._acting, resource, proposal=weighed.proposal, target=target)

    def _namespace(self, resource: KernelExperiment) -> str:
        return self._jobs.namespace or resource.metadata.namespace


def _seconds(step: ExperimentStep, *, now: datetime) -> float | None:
    if step.look_again_at is None:
        return None
    return max(0.0, (step.look_again_at - now).total_seconds())
