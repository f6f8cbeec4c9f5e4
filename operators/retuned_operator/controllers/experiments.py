"""KernelExperiments: Jobs that are made, released, held back and cleared away; wins proposed."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from retuned.errors import Refused, UsageError
from retuned.ports import Telemetry
from retuned.stages.proposal import Proposal
from retuned_operator.controllers import counted, reading, telling, trials, turns, wanting
from retuned_operator.controllers.acting import Acting
from retuned_operator.controllers.beliefs import asked_for, planned_for
from retuned_operator.controllers.following import LATER_S, Follow, follow
from retuned_operator.controllers.ports import BY_EXPERIMENT
from retuned_operator.controllers.proposals import NOT_KNOWN_S
from retuned_operator.controllers.swaps import World
from retuned_operator.controllers.wanting import EVOLVE, MENDED
from retuned_operator.crds import (
    KernelExperiment,
    KernelExperimentStatus,
    TuningTarget,
    proposal_spec,
    read,
    write,
)
from retuned_operator.crds.values import API_VERSION, with_condition
from retuned_operator.machine import (
    CreateJob,
    DeleteJob,
    ExperimentFacts,
    ExperimentStep,
    SetSuspend,
    experiments,
)
from retuned_operator.machine.records import ExperimentAction
from retuned_operator.manifests import JobRequest, JobSettings, job_objects, proposal_name
from retuned_operator.manifests.names import labels, owner
from retuned_operator.runtime.resources import (
    CONFIG_MAPS,
    EXPERIMENTS,
    JOBS,
    PROPOSALS,
    TARGETS,
    Obj,
)

__all__ = ["EVOLVE", "Experiments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """One experiment with what was seen of it."""

    resource: KernelExperiment
    """As it is."""
    facts: ExperimentFacts
    """Everything else."""


class Experiments:
    """Controller; its keys are experiments, ``namespace/name``.

    Budgets are shared by all experiments of a policy, so one is looked at after the other.

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
        self, world: World, acting: Acting, *, jobs: JobSettings, telemetry: Telemetry
    ) -> None:
        self._world = world
        self._acting = acting
        self._jobs = jobs
        self._telemetry = telemetry
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
            return self._follow(key)

    def _collect(self, key: str) -> None:
        """Bring in what its pods have left before its turn: no other waits for its node."""
        body = self._world.caches.get(EXPERIMENTS, key)
        if body is not None and not reading.is_over(body):
            self._world.ledger.collect(read(KernelExperiment, body))

    def _step(self, resource: KernelExperiment) -> float | None:
        if resource.status.phase.is_terminal:
            return self._cleared(resource)
        facts = trials.facts_of(
            self._world,
            resource,
            namespace=self._namespace(resource),
            queued=bool(self._jobs.queue),
        )
        if facts is None:
            return NOT_KNOWN_S
        facts = replace(facts, unplaced=wanting.no_place(facts.target, self._jobs))
        return self._go(_Looked(resource=resource, facts=facts))

    def _orphaned(self, key: str) -> float | None:
        """Delete what is left of one that is gone: owners of other namespaces do not count."""
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
        """Delete what an experiment that is over still holds; nothing else is asked about it."""
        jobs = trials.jobs_of(self._world, resource, namespace=self._namespace(resource))
        if jobs is None:
            return NOT_KNOWN_S
        for job in jobs:  # in another namespace nothing else would take the task away
            self._acting.delete(CONFIG_MAPS, job.name, namespace=self._namespace(resource))
        facts = ExperimentFacts(jobs=jobs)
        return self._go(_Looked(resource=resource, facts=facts))

    def _follow(self, key: str) -> float | None:
        """Do what follows from an experiment that is over, then say so in its status."""
        body, now = self._world.caches.get(EXPERIMENTS, key), self._world.clock.now()
        if body is None:
            return None
        resource = read(KernelExperiment, body)
        again = wanting.mended(self._world, resource, self._jobs)
        if again is not None:
            if isinstance(again, float):
                return again
            self._asked_again(resource, again)
            return None
        found = follow(self._world, resource, now=now)
        if not isinstance(found, Follow):
            return found
        status = resource.status
        if found.proposal is not None and found.target is not None:
            name = self._proposed(resource, found.proposal, found.target)
            status = status.model_copy(update={"proposal": name})
        elif found.belief is not None and not self._asked(resource, found):
            return LATER_S
        known = telling.condition(
            found.type,
            found.done,
            reason=found.reason,
            message=found.detail,
            generation=resource.metadata.generation,
            now=now,
        )
        conditions = with_condition(status.conditions, known)
        status = status.model_copy(update={"conditions": conditions})
        self._acting.status(EXPERIMENTS, resource, status)
        return found.look_again_s

    def _asked_again(self, resource: KernelExperiment, body: Obj) -> None:
        """Ask for what could not be placed before; the same refusal leads to the same name."""
        name = body["metadata"]["name"]
        with self._acting.spans.span("experiment", about={"experiment": name}):
            self._acting.make(EXPERIMENTS, body)
        known = telling.condition(
            MENDED,
            True,
            reason="settings-mended",
            message=f"asked for again as {name}",
            generation=resource.metadata.generation,
            now=self._world.clock.now(),
        )
        conditions = with_condition(resource.status.conditions, known)
        status = resource.status.model_copy(update={"conditions": conditions})
        self._acting.status(EXPERIMENTS, resource, status)

    def _asked(self, resource: KernelExperiment, found: Follow) -> bool:
        """Ask for another experiment on what is believed now; the same try has the same name."""
        belief, target, chosen = found.belief, found.target, found.chosen
        if belief is None or target is None or chosen is None:
            raise AssertionError("`follow` names all three or none")
        planned = planned_for(self._world, target, belief, chosen)
        if planned is None:
            return False
        about = {"target": target.full_name, "kernel": belief.definition}
        with self._acting.spans.span("hypothesis", after=turns.last_span(resource), about=about):
            self._world.ledger.believe(belief)
            body = asked_for(planned, target, chosen, resource.spec.drift)
            self._acting.make(EXPERIMENTS, body)
        self._telemetry.count("retuned_hypotheses_total")
        return True

    def _go(self, looked: _Looked) -> float | None:
        """Decide, write the status, and only then act."""
        now, resource = self._world.clock.now(), looked.resource
        pipeline = wanting.pipeline_of(resource, looked.facts.target, self._jobs)
        step = experiments.step(resource, looked.facts, now=now, pipeline=pipeline)
        requests: dict[ExperimentAction, JobRequest] = {}
        try:
            requests = self._requests(looked, step)
        except (Refused, UsageError) as error:
            step = experiments.unable(resource, looked.facts, error, now=now)
        status = telling.with_experiment_conditions(resource, step.status, now=now)
        with self._turn_of(resource, status, now=now):
            after = self._acting.status(EXPERIMENTS, resource, status)
            self._tell(resource, status)
        for action in step.actions:
            if action in requests:
                self._make(replace(requests[action], traceparent=turns.last_span(after)))
            else:
                self._act(_Looked(resource=after, facts=looked.facts), action)
        return _seconds(step, now=now)

    def _turn_of(
        self, resource: KernelExperiment, status: KernelExperimentStatus, *, now: datetime
    ) -> AbstractContextManager[None]:
        """Be in the span of a step, which goes on from the last."""
        found = turns.of_experiment(resource, status, now_s=now.timestamp())
        if found is None:
            return nullcontext()
        return self._acting.spans.span(
            found.stage,
            after=turns.last_span(resource),
            since_s=found.since_s,
            about=found.about,
        )

    def _tell(self, resource: KernelExperiment, status: KernelExperimentStatus) -> None:
        for event in telling.experiment_events(resource, resource.status, status):
            self._acting.say(event)
        counted.experiment_moved(self._telemetry, resource.status, status)

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
        """Return the Jobs that a step makes: what cannot be made is known before it is said.

        Raises
        ------
        Refused
            If a Job cannot be made, now or later.
        TemporaryError
            If its task cannot be put together now.
        """
        target = looked.facts.target
        # what a Job is told follows from results that count as of this step
        resource = looked.resource.model_copy(update={"status": step.status})
        found: dict[ExperimentAction, JobRequest] = {}
        for action in step.actions:
            if not isinstance(action, CreateJob):
                continue
            assert target is not None, "its absence ends an experiment"
            found[action] = wanting.request_of(
                self._world,
                resource,
                action,
                target=target,
                chosen=trials.chosen_for(resource, looked.facts.policies, target),
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
        weighed = trials.weigh(self._world, resource, target, results=results, now=now)
        if weighed.proposal is not None and target is not None:
            self._proposed(resource, weighed.proposal, target)

    def _proposed(
        self, resource: KernelExperiment, proposal: Proposal, target: TuningTarget
    ) -> str:
        spec = proposal_spec(
            proposal,
            target=target.metadata.name,
            gpu_model=resource.spec.gpu_model,
            experiment=resource.metadata.name,
        )
        name = proposal_name(proposal.id, target_uid=target.metadata.uid)
        about = {"experiment": resource.metadata.name, "kernel": spec.kernel, "name": name}
        with self._acting.spans.span("proposal", after=turns.last_span(resource), about=about):
            self._acting.make(PROPOSALS, proposal_body(name, write(spec), target=target))
        return name

    def _namespace(self, resource: KernelExperiment) -> str:
        return self._jobs.namespace or resource.metadata.namespace


def proposal_body(name: str, spec: dict[str, Any], *, target: TuningTarget) -> dict[str, Any]:
    """Return a SwapProposal that goes with its target."""
    return {
        "apiVersion": API_VERSION,
        "kind": PROPOSALS.kind,
        "metadata": {
            "name": name,
            "namespace": target.metadata.namespace,
            "labels": labels("experiment"),
            "ownerReferences": [
                owner(TARGETS.kind, name=target.metadata.name, uid=target.metadata.uid)
            ],
        },
        "spec": spec,
    }


def _seconds(step: ExperimentStep, *, now: datetime) -> float | None:
    if step.look_again_at is None:
        return None
    return max(0.0, (step.look_again_at - now).total_seconds())
