"""From drift to experiments: what sidecars report, through stages 4 and 5, to KernelExperiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned.api.experiment import Drift
from retuned.api.target import TargetMode
from retuned.api.values import API_VERSION
from retuned.contract import Workload, digest_of
from retuned.control import PolicyFact, gate_facts
from retuned.control.hypotheses import KnownKernels, shape_costs
from retuned.ports import Telemetry
from retuned.stages.experiment import Budget, ExperimentPlan, plan
from retuned.stages.gate import Mode, limits_of
from retuned.stages.hypothesis import (
    Hypothesis,
    HypothesisSettings,
    NotTried,
    ShapeCost,
    Untried,
    hypothesize,
)
from retuned.stages.profile import Counts, WorkloadProfile, merge
from retuned.stages.proposal import is_tunable
from retuned_operator.controllers import objects, tunables
from retuned_operator.controllers.cluster_view import ClusterView, baseline, target_of
from retuned_operator.controllers.ports import BY_TARGET, OpenDrift
from retuned_operator.controllers.proposal import NOT_KNOWN_S
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, PROPOSALS, TARGETS, Obj
from retuned_operator.manifests import experiment_name
from retuned_operator.manifests.names import labels, owner
from retuned_operator.schema import (
    ExperimentPhase,
    KernelExperiment,
    PolicyRef,
    SwapProposal,
    TuningTarget,
    experiment_spec,
    write,
)

MIN_WINDOWS = 2
"""The window that raised a report is half old traffic, half new; so many later ones are needed."""
MAX_BELIEFS = 4
"""Most experiments that one report leads to."""


class HypothesisController:
    """Controller; its keys are targets, ``namespace/name``.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    telemetry
        Numbers.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter, *, telemetry: Telemetry) -> None:
        self._world = world
        self._acting = acting
        self._telemetry = telemetry

    def reconcile(self, key: str) -> float | None:
        """Answer the drift reports of a target; return when to look again, seconds.

        Raises
        ------
        RetunedError
            If something could not be read, or a write was refused.
        """
        target = target_of(self._world, key)
        if target is None or target.spec.mode is TargetMode.OBSERVE:
            return None
        self._tables(target)
        ripe = [d for d in self._world.ledger.drifts(key) if len(d.windows) >= MIN_WINDOWS]
        if not ripe:
            return None
        about = {"target": key, "drift": ripe[0].id, "sentence": ripe[0].report.sentence}
        with self._acting.spans.span("hypothesis", after=ripe[0].traceparent, about=about):
            done = self._answer(target, ripe[0])
        if done:  # the next one once its experiments are to be seen
            self._world.ledger.answered(ripe[0])
        return NOT_KNOWN_S

    def _tables(self, target: TuningTarget) -> None:
        """Ask for experiments on tunables; each without one has a reason.

        They need no drift: a choice that was never right is as good a reason.
        """
        world, now = self._world, self._world.clock.now()
        caches, namespace = world.caches, target.metadata.namespace
        policies = objects.policies(caches.list(POLICIES, namespace=namespace))
        tried = caches.by(EXPERIMENTS, BY_TARGET, target.full_name)
        proposed = caches.by(PROPOSALS, BY_TARGET, target.full_name)
        if policies is None or tried is None or proposed is None:
            return
        earlier, _ = objects.all_of(KernelExperiment, tried)
        proposals, _ = objects.all_of(SwapProposal, proposed)
        open_ones = {each.spec.kernel for each in proposals if not each.status.phase.is_terminal}
        untried: dict[str, Untried] = {}
        for name, posts in tunables.fresh(world.tunables.of(target.full_name), now=now).items():
            launched = world.tunables.launched(target.full_name, name)
            facts = tunables.TunableFacts(
                name=name,
                posts=posts,
                earlier=[each for each in earlier if each.spec.kernel.name == name],
                proposals=name in open_ones,
                baseline=baseline(world, target, name),
                incumbent=None if launched is None else launched.incumbent.digest,
                environment=target.status.environment,
            )
            belief = tunables.believed(facts, now=now)
            if isinstance(belief, Untried):
                untried[name] = belief
                continue
            refused = self._ask(target, belief, policies, why=Drift(sentence=belief.because[:2048]))
            if refused is not None:
                untried[name] = refused
        world.tunables.tell(target.full_name, untried)

    def _ask(
        self,
        target: TuningTarget,
        belief: Hypothesis,
        policies: tuple[PolicyFact, ...],
        *,
        why: Drift,
    ) -> Untried | None:
        """Ask for an experiment; return why none was asked for, None where one was."""
        chosen = allowing(policies, belief.definition, target)
        if chosen is None:
            detail = "no policy of the target allows an experiment on it"
            return Untried(reason=NotTried.NO_POLICY, detail=detail)
        planned = planned_for(self._world, target, belief, chosen)
        if planned is None:
            return Untried(reason=NotTried.NO_TRAFFIC, detail="what runs is not known yet")
        body = asked_for(planned, target, chosen, why)
        name, namespace = body["metadata"]["name"], target.metadata.namespace
        if self._world.caches.get(EXPERIMENTS, f"{namespace}/{name}") is not None:
            detail = f"the same experiment is there: {name}; delete it to repeat it"
            return Untried(reason=NotTried.ALL_TRIED, detail=detail)
        self._world.ledger.believe(belief)
        about = {"experiment": planned.id, "kernel": belief.definition}
        with self._acting.spans.span("experiment", about=about):
            self._acting.make(EXPERIMENTS, body)
        self._telemetry.count("retuned_hypotheses_total")
        return None

    def _answer(self, target: TuningTarget, drifted: OpenDrift) -> bool:
        """Believe, plan and ask for experiments; False while something is not known."""
        caches, namespace = self._world.caches, target.metadata.namespace
        policies = objects.policies(caches.list(POLICIES, namespace=namespace))
        bodies = caches.by(EXPERIMENTS, BY_TARGET, target.full_name)
        environment = target.status.environment
        if policies is None or bodies is None or environment is None:
            return False
        earlier, _ = objects.all_of(KernelExperiment, bodies)
        beliefs = beliefs_of(self._world, target, drifted, earlier=earlier)
        reasons = drifted.report.reasons
        why = Drift(
            reason=str(reasons[0].code) if reasons else "", sentence=_sentence(drifted)[:2048]
        )
        for belief in beliefs[:MAX_BELIEFS]:
            self._ask(target, belief, policies, why=why)
        return True


def _sentence(drifted: OpenDrift) -> str:
    said = drifted.report.sentence
    return f"{said} Beside it: {drifted.beside}." if drifted.beside else said


def beliefs_of(
    world: ClusterView,
    target: TuningTarget,
    drifted: OpenDrift,
    *,
    earlier: Sequence[KernelExperiment],
) -> tuple[Hypothesis, ...]:
    """Ask stage 4; kernels that are being experimented on are left out."""
    profile = merge(list(drifted.windows))
    shapes, total_ns = costs_of(world, target, profile, counts=drifted.counts)
    busy = {e.spec.kernel.name for e in earlier if not e.status.phase.is_terminal}
    found = hypothesize(
        {name: costs for name, costs in shapes.items() if name not in busy},
        report=drifted.report,
        total_gpu_time_ns=total_ns,
        observed_ns=profile.observed_ns,
        known={each.spec.hypothesis for each in earlier if not _was_never_made(each)},
        worlds={
            name: digest_of([baseline(world, target, name), target.status.environment])
            for name in shapes
        },
    )
    return tuple(found)


def _was_never_made(experiment: KernelExperiment) -> bool:
    """Whether an experiment was refused before its first Job: it has no result."""
    status = experiment.status
    return status.phase is ExperimentPhase.REFUSED and status.reason in tunables.UNMADE


def costs_of(
    world: ClusterView, target: TuningTarget, profile: WorkloadProfile, *, counts: Counts
) -> tuple[Mapping[str, Sequence[ShapeCost]], int]:
    """Return what a window spends on each definition; see `shape_costs`.

    The operator does not know what a pod's accelerator can do at most, so no time has a floor.
    """
    guards = {entry.kernel: entry.guard for entry in target.status.active_kernels}

    def serves(workload: Workload) -> bool:
        guard = guards.get(workload.definition)
        return guard is None or guard.allows(workload.axes)

    kernels = KnownKernels(
        recognise=lambda s: world.kernels.recognise(s.kernel, s.dims, s.dtypes, target=target),
        live_shares=world.kernels.live_shapes(target=target),
        serves=serves,
    )
    return shape_costs(
        profile, counts=counts, kernels=kernels, launch_ns=HypothesisSettings().launch_ns
    )


def allowing(
    policies: tuple[PolicyFact, ...], kernel: str, target: TuningTarget
) -> PolicyFact | None:
    """Return the policy that lets a kernel be experimented on; None where none does."""
    chosen = gate_facts.choose(policies, kernel, labels=gate_facts.labels_of(target))[0]
    if chosen is None or chosen.policy.spec.mode is Mode.OBSERVE_ONLY:
        return None
    return chosen if chosen.policy.spec.experiments.max_concurrent > 0 else None


def planned_for(
    world: ClusterView, target: TuningTarget, belief: Hypothesis, chosen: PolicyFact
) -> ExperimentPlan | None:
    """Return the plan of stage 5; None while the incumbent or the environment is unknown."""
    live, environment = baseline(world, target, belief.definition), target.status.environment
    if live is None or environment is None:
        return None
    budget = Budget()
    most = chosen.policy.spec.experiments.budget.max_trials
    if most < budget.max_candidates:
        budget = budget.model_copy(update={"max_candidates": most})
    # the source of a live kernel must not leave the operator, and its variants cannot be judged
    alone = is_tunable(belief.definition) or world.kernels.is_live(belief.definition, target=target)
    return plan(
        belief,
        incumbent=live,
        environment=environment,
        budget=budget,
        generators=("search",) if alone else world.generators,
        batch_invariant=limits_of(chosen.policy).batch_invariant,
    )


def asked_for(planned: ExperimentPlan, target: TuningTarget, chosen: PolicyFact, why: Drift) -> Obj:
    """Return the KernelExperiment of a plan; the same plan has the same name."""
    policy = chosen.policy
    ref = PolicyRef(name=policy.metadata.name, generation=chosen.generation, digest=policy.digest)
    spec = experiment_spec(
        planned,
        target=target.metadata.name,
        gpu_model=target.spec.gpu.model,
        policy=ref,
        drift=why,
    )
    uid = target.metadata.uid
    return {
        "apiVersion": API_VERSION,
        "kind": EXPERIMENTS.kind,
        "metadata": {
            "name": experiment_name(planned.id, target_uid=uid),
            "namespace": target.metadata.namespace,
            "labels": labels("experiment"),
            "ownerReferences": [owner(TARGETS.kind, name=target.metadata.name, uid=uid)],
        },
        "spec": write(spec),
    }
