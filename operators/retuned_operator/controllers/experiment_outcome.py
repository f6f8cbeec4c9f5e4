"""Result of an experiment that has ended: a proposal, another try, or nothing; written once."""

from __future__ import annotations

from retuned.api.values import with_condition
from retuned.control import step_spans
from retuned.ports import Telemetry
from retuned_operator.controllers import conditions as telling
from retuned_operator.controllers import job_requests
from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.hypothesis import asked_for, planned_for
from retuned_operator.controllers.job_requests import MENDED
from retuned_operator.controllers.next_action import LATER_S, NextAction, follow
from retuned_operator.controllers.proposal import propose
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import EXPERIMENTS, Obj
from retuned_operator.manifests import JobSettings
from retuned_operator.schema import KernelExperiment, read


class OutcomeController:
    """Does what follows.

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

    def follow(self, key: str) -> float | None:
        """Do what follows from an experiment that is over, then say so in its status."""
        body, now = self._world.caches.get(EXPERIMENTS, key), self._world.clock.now()
        if body is None:
            return None
        resource = read(KernelExperiment, body)
        again = job_requests.mended(self._world, resource, self._jobs)
        if again is not None:
            if isinstance(again, float):
                return again
            self._asked_again(resource, again)
            return None
        found = follow(self._world, resource, now=now)
        if not isinstance(found, NextAction):
            return found
        status = resource.status
        if found.proposal is not None and found.target is not None:
            name = propose(self._acting, resource, proposal=found.proposal, target=found.target)
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

    def _asked(self, resource: KernelExperiment, found: NextAction) -> bool:
        """Create the next experiment on the current hypothesis; the same try has the same name."""
        belief, target, chosen = found.belief, found.target, found.chosen
        if belief is None or target is None or chosen is None:
            raise AssertionError("`follow` names all three or none")
        planned = planned_for(self._world, target, belief, chosen)
        if planned is None:
            return False
        about = {"target": target.full_name, "kernel": belief.definition}
        with self._acting.spans.span(
            "hypothesis", after=step_spans.last_span(resource), about=about
        ):
            self._world.ledger.believe(belief)
            body = asked_for(planned, target, chosen, resource.spec.drift)
            self._acting.make(EXPERIMENTS, body)
        self._telemetry.count("retuned_hypotheses_total")
        return True
