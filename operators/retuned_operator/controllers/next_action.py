"""What follows an experiment that is over: another try, its win once more, or why not.

The decisions are those of one machine: `attempts.conclude` and stage 7's `propose_again`. What came
of them is a condition of the experiment, so that people read there why nothing more happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from retuned.api.target import TargetMode
from retuned.control.facts import PolicyFact
from retuned.control.outcome import code_of, conclude, searched
from retuned.stages.gate import utc_minute
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import (
    AgainLimits,
    Proposal,
    Refusal,
    RefusalReason,
    is_tunable,
    propose_again,
)
from retuned_operator.controllers import experiment_facts, objects
from retuned_operator.controllers.cluster_view import ClusterView, baseline, target_of
from retuned_operator.controllers.hypothesis import allowing, planned_for
from retuned_operator.controllers.ports import BY_TARGET
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, PROPOSALS, Obj
from retuned_operator.schema import (
    ExperimentPhase,
    KernelExperiment,
    ProposalPhase,
    SwapProposal,
    TuningTarget,
)

REFINED, AGAIN = "Refined", "ProposedAgain"
"""Types of conditions."""
LATER_S = 60.0
"""When to look again while something is not known, or something else is under way, seconds."""
LIMITS = AgainLimits(rest=experiment_facts.PROPOSAL_TTL)
"""When a win that expired comes again."""
_LESSON = str(RefusalReason.LIVE_LESSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """What follows."""

    type: str
    """Type of the condition."""
    done: bool = False
    """Whether another try was asked for, or the win is proposed again."""
    reason: str = ""
    """Stable code."""
    detail: str = ""
    """For people."""
    target: TuningTarget | None = None
    """The servers; None where nothing is to be made."""
    belief: Hypothesis | None = None
    """What is to be tested now; None where nothing is."""
    chosen: PolicyFact | None = None
    """Policy that allows the test."""
    proposal: Proposal | None = None
    """What is to be proposed; None where nothing is."""
    look_again_s: float | None = None
    """When to look again, seconds; None where nothing changes by itself."""


def follow(
    world: ClusterView, resource: KernelExperiment, *, now: datetime
) -> NextAction | float | None:
    """Say what follows; a number where that is not known before so many seconds, None for nothing.

    Raises
    ------
    TemporaryError
        If what it found cannot be read now.
    UnreadableInput
        If the target cannot be read.
    """
    phase, known = resource.status.phase, {each.type for each in resource.status.conditions}
    deferred = phase is ExperimentPhase.NO_IMPROVEMENT and resource.status.reason == _LESSON
    wanted = phase is ExperimentPhase.SUCCEEDED or (
        phase is ExperimentPhase.NO_IMPROVEMENT and (AGAIN if deferred else REFINED) not in known
    )
    key = f"{resource.metadata.namespace}/{resource.spec.target_ref.name}"
    target = target_of(world, key) if wanted else None
    if target is None or target.spec.mode is TargetMode.OBSERVE:
        return None
    if phase is ExperimentPhase.SUCCEEDED:
        return _again(world, resource, target, now=now)
    if deferred:
        return _after_lessons(world, resource, target, now=now)
    return _refined(world, resource, target)


def _refined(
    world: ClusterView, resource: KernelExperiment, target: TuningTarget
) -> NextAction | float:
    """Compare the results of the experiment with its hypothesis."""
    spec = resource.spec
    live, environment = baseline(world, target, spec.kernel.name), target.status.environment
    bodies = world.caches.by(EXPERIMENTS, BY_TARGET, target.full_name)
    policies = objects.policies(world.caches.list(POLICIES, namespace=resource.metadata.namespace))
    if None in (live, environment) or bodies is None or policies is None:
        return LATER_S
    if (live, environment) != (spec.baseline.digest, spec.environment):
        detail = "the active variant or the environment has changed"
        return NextAction(type=REFINED, reason="world-changed", detail=detail)
    if is_tunable(spec.kernel.name):
        answer = searched(world.ledger.findings(resource), ())
        detail = answer.sentence if answer else "the search found a winner"
        return NextAction(type=REFINED, reason=code_of(answer), detail=detail)
    belief = world.ledger.belief(spec.hypothesis)
    if belief is None:
        return NextAction(
            type=REFINED, reason="belief-unknown", detail="its hypothesis is not in the store"
        )
    others, _ = objects.all_of(KernelExperiment, bodies)
    answer = conclude(
        spec.stage_plan(),
        world.ledger.findings(resource),
        belief=belief,
        first_saving=_first_saving(world, others, belief),
        structures=world.kernels.structures(spec.kernel.name, target=target),
    )
    if answer is None or answer.hypothesis is None:
        detail = answer.sentence if answer else "the measured saving is enough"
        return NextAction(type=REFINED, reason=code_of(answer), detail=detail)
    if any(e.spec.kernel.name == spec.kernel.name and _is_open(e) for e in others):
        return LATER_S  # one experiment on a kernel at a time
    chosen = allowing(policies, spec.kernel.name, target)
    if chosen is None:
        detail = "no policy allows another experiment"
        return NextAction(type=REFINED, reason="policy-forbids", detail=detail)
    if planned_for(world, target, answer.hypothesis, chosen) is None:
        return LATER_S
    return NextAction(
        type=REFINED,
        done=True,
        reason=code_of(answer),
        detail=answer.sentence,
        target=target,
        belief=answer.hypothesis,
        chosen=chosen,
    )


def _is_open(experiment: KernelExperiment) -> bool:
    return not experiment.status.phase.is_terminal


def _first_saving(
    world: ClusterView, others: Sequence[KernelExperiment], belief: Hypothesis
) -> float:
    """Return the saving expected before any attempt; later hypotheses are discounted."""
    if not belief.attempts:
        return belief.expected_saving
    plan = belief.attempts[0].experiment
    first = next((each for each in others if each.spec.plan == plan), None)
    known = world.ledger.belief(first.spec.hypothesis) if first is not None else None
    return known.expected_saving if known is not None else belief.expected_saving


def _again(
    world: ClusterView, resource: KernelExperiment, target: TuningTarget, *, now: datetime
) -> NextAction | float | None:
    """Decide whether a win is proposed again after its proposal expired."""
    bodies = world.caches.by(PROPOSALS, BY_TARGET, target.full_name)
    if bodies is None:
        return LATER_S
    found, _ = objects.all_of(SwapProposal, bodies)
    mine = [each for each in found if _is_of(each, resource)]
    newest = max(mine, key=lambda each: each.spec.attempt, default=None)
    if newest is None or newest.status.phase is not ProposalPhase.EXPIRED:
        return None
    answer = propose_again(
        expired=newest.spec.attempt,
        expired_at=_expired_at(newest),
        measured_at=resource.status.finished_at or newest.spec.expires_at,
        now=now,
        limits=LIMITS,
    )
    if isinstance(answer, Refusal):
        return NextAction(type=AGAIN, reason=str(answer.reason), detail=answer.detail)
    if now < answer:
        detail = f"it expired, and is proposed again after {utc_minute(answer)}"
        seconds = (answer - now).total_seconds()
        return NextAction(type=AGAIN, reason="resting", detail=detail, look_again_s=seconds)
    if _is_busy(bodies, resource.spec.kernel.name):
        return LATER_S
    weighed = experiment_facts.weigh(
        world,
        resource,
        target,
        results=world.ledger.results(resource),
        now=now,
        attempt=newest.spec.attempt + 1,
    )
    if weighed.proposal is None:
        refusal = weighed.refusal or "not-proven"
        detail = weighed.detail or "the win does not hold any more"
        return NextAction(type=AGAIN, reason=refusal, detail=detail, look_again_s=3600.0)
    detail = f"attempt {newest.spec.attempt + 1}: the last one expired without a decision"
    return NextAction(
        type=AGAIN,
        done=True,
        reason="proposed-again",
        detail=detail,
        target=target,
        proposal=weighed.proposal,
    )


def _after_lessons(
    world: ClusterView, resource: KernelExperiment, target: TuningTarget, *, now: datetime
) -> NextAction | float:
    """Ask whether a win is proposed that a lesson has refused: it may be lifted, or not hold."""
    made, environment = experiment_facts.made_for(world, resource), target.status.environment
    if made is None or environment is None:
        return LATER_S
    if environment != resource.spec.environment:
        stale, detail = RefusalReason.STALE_ENVIRONMENT, "the servers run on something else now"
        return NextAction(type=AGAIN, reason=str(stale), detail=detail)
    ended_at = resource.status.finished_at or now
    answer = propose_again(
        expired=0, expired_at=ended_at, measured_at=ended_at, now=now, limits=LIMITS
    )
    if isinstance(answer, Refusal):
        return NextAction(type=AGAIN, reason=str(answer.reason), detail=answer.detail)
    results = world.ledger.results(resource)
    weighed = experiment_facts.weigh_again(world, resource, target, made, results=results, now=now)
    if weighed.refusal == _LESSON or _is_busy(made, resource.spec.kernel.name):
        return LATER_S
    if weighed.proposal is None:
        refusal = weighed.refusal or "not-proven"
        detail = weighed.detail or "the win does not hold any more"
        return NextAction(type=AGAIN, reason=refusal, detail=detail)
    detail = "the lesson of a live proof does not hold any more"
    return NextAction(
        type=AGAIN,
        done=True,
        reason="lesson-over",
        detail=detail,
        target=target,
        proposal=weighed.proposal,
    )


def _is_busy(made: Sequence[Obj], kernel: str) -> bool:
    """Whether a proposal for a kernel is open."""
    found, _ = objects.all_of(SwapProposal, made)
    return any(e.spec.kernel == kernel and not e.status.phase.is_terminal for e in found)


def _is_of(proposal: SwapProposal, experiment: KernelExperiment) -> bool:
    spec = proposal.spec
    named = (spec.experiment_ref, spec.plan)
    return named == (experiment.metadata.name, experiment.spec.plan)


def _expired_at(proposal: SwapProposal) -> datetime:
    times = [s.at for s in proposal.status.history if s.to is ProposalPhase.EXPIRED]
    return times[-1] if times else proposal.spec.expires_at
