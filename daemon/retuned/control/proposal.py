"""State machine of a proposal: from evidence through the gate and over the pods, and back.

`step` is level-triggered: it gets the present state and returns the status. The checks are in order
of harm: rolling back comes before advancing. An unreadable input stops progress, but never a
rollback.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from retuned.api.proposal import AnalysisStatus, ProposalPhase, RolloutStatus, SwapProposal
from retuned.api.target import Quarantined, TargetMode
from retuned.control import (
    attributions,
    canary,
    gate_facts,
    live_proofs,
    orders,
    sentinels,
    waves,
)
from retuned.control.facts import (
    Activate,
    Deactivate,
    PageOnCall,
    Quarantine,
    RolloutAction,
    RolloutFacts,
    RolloutStep,
)
from retuned.control.live_proofs import NO_CANARY_REPLICAS
from retuned.control.proposal_step import ProposalStep, cause_of, entry_of, is_quarantined, noted
from retuned.control.rollback import has_strayed
from retuned.control.rollout import after, going_back, told_more
from retuned.stages import gate
from retuned.stages.gate import GateReason, GateState

_LOOK_AGAIN = timedelta(seconds=30)
"""Interval of the observations of a rollout."""

_P = ProposalPhase
_UNKNOWN = frozenset({"environment-unknown", "baseline-unknown", "pods-not-ready"})
"""Reasons that an operator which has just begun gives: it has heard of no pod yet."""


def step(resource: SwapProposal, facts: RolloutFacts, *, now: datetime) -> RolloutStep:
    """Return the next status and actions of a proposal.

    Parameters
    ----------
    resource
        The proposal as stored.
    facts
        All other observations.
    now
        Moment, with a zone.

    Raises
    ------
    ValueError
        If the proposal does not come from an API server.
    """
    if not facts.leading:
        return RolloutStep(status=resource.status)
    case = ProposalStep(
        resource=resource,
        facts=facts,
        asked=gate_facts.ask(resource, facts, now=now),
        now=now,
        status=resource.status.model_copy(
            update={"observed_generation": resource.metadata.generation}
        ),
    )
    if facts.live_proofs is not None:
        case = case.having(live_proofs=facts.live_proofs)
    if facts.sentinels is not None:
        case = case.having(sentinels=facts.sentinels)
    if facts.attributions is not None:
        case = case.having(attributions=facts.attributions)
    if case.phase.is_before_swap or canary.is_proving(case.status):
        case = _before(noted(case))
    elif case.phase.is_under_way or case.phase is _P.PROMOTED:
        case = after(case)
    elif case.phase is _P.ROLLED_BACK and has_strayed(case):
        case = case.to(_P.ROLLING_BACK, "stray-pod", "a pod returned with the artifact")
    if case.phase.is_going_back:
        case = going_back(case)
    case = canary.stopped(case)
    if facts.live_proofs is not None and case.asked is not None and case.asked.chosen is not None:
        rule = case.asked.chosen.policy.spec.live_proof
        case = sentinels.asked(live_proofs.asked(case, rule=rule), rule=rule)
        case = attributions.asked(case, rule=rule)
    return RolloutStep(
        status=case.status,
        actions=_actions(case),
        look_again_at=_again(case),
        replica_state=case.replica_state,
    )


def _before(case: ProposalStep) -> ProposalStep:
    """Advance one step before the first order, or end.

    While canary replicas prove, what forbids a begin holds the proof, and what is unknown does not.
    """
    facts, spec, proving = case.facts, case.resource.spec, canary.is_proving(case.status)
    if spec.abort.requested:
        return case.to(_P.ABORTED, "aborted", spec.abort.reason)
    outdated = _outdated(case)
    if outdated is not None:
        return outdated
    if not facts.evidence_checked:
        return case if proving else case.to(_P.VALIDATING, "evidence-unchecked")
    if facts.evidence_fault is not None:
        return case.to(_P.INVALID, facts.evidence_fault)
    if is_quarantined(case):
        return case.to(_P.INVALID, "quarantined", "the artifact is quarantined after recent harm")
    if case.asked is None:
        if proving:
            return case
        phase = case.phase if case.phase is _P.SCHEDULED else _P.AWAITING_APPROVAL
        return case.to(phase, "unreadable", "a policy, decision or freeze cannot be read")
    answer = case.asked.answer
    detail = gate.explain(answer)
    if answer.state is GateState.REJECTED:
        aborted = answer.reason is GateReason.ABORTED
        return case.to(_P.ABORTED if aborted else _P.REJECTED, str(answer.reason), detail)
    if answer.state is GateState.EXPIRED:
        return case.to(_P.EXPIRED, str(answer.reason), detail)
    if answer.state in (GateState.WAITING, GateState.OBSERVE_ONLY):
        return case.to(_P.AWAITING_APPROVAL, str(answer.reason), detail)
    if answer.state is not GateState.APPROVED:
        return case.to(_P.SCHEDULED, str(answer.reason), detail)
    held = _held_back(case)
    if held is not None:
        passing = held[0] in _UNKNOWN or (held[0] == "slo-alert" and facts.slo_firing is None)
        return case if proving and passing else case.to(_P.SCHEDULED, *held)
    if not proving:
        case = case.to(_P.APPROVED, str(answer.reason), detail)
    if canary.is_due(case):
        case = canary.advanced(case)
        if not canary.is_proven(case.status):
            return case
    return _begun(case)


def _outdated(case: ProposalStep) -> ProposalStep | None:
    """End a proposal that later changes made obsolete; unknown facts are not a reason."""
    facts, spec = case.facts, case.resource.spec
    if facts.target is None:
        return case.to(_P.SUPERSEDED, "target-gone")
    by = waves.newer(case.resource, facts.others)
    if by:
        return case.to(_P.SUPERSEDED, "superseded", f"by {by}")
    environment = facts.target.status.environment
    if environment is not None and environment != spec.environment:
        return case.to(_P.SUPERSEDED, "environment-changed")
    if spec.gpu_model != facts.target.spec.gpu.model:
        return case.to(_P.SUPERSEDED, "gpu-model-changed")
    if facts.live_baseline is not None and facts.live_baseline != spec.baseline_digest:
        return case.to(_P.SUPERSEDED, "baseline-changed")
    return None


def _held_back(case: ProposalStep) -> tuple[str, str] | None:
    """Return why an approved swap may not start now, or None."""
    facts, rule = case.facts, case.rule
    assert facts.target is not None, "its absence ends a proposal"
    assert rule is not None, "the gate approved it by a policy"
    busy = waves.busy_elsewhere(facts.others)
    last = waves.last_swap_elsewhere(facts.others)
    held = (
        (facts.target.spec.mode is not TargetMode.SWAP, "target-mode", "the target forbids swaps"),
        (bool(busy), "other-rollout", f"{busy} is in progress on the same servers"),
        (
            last is not None and case.now < last + rule.min_interval,
            "min-interval",
            "these servers were swapped recently",
        ),
        (facts.target.status.environment is None, "environment-unknown", "not all pods agree"),
        (
            facts.live_baseline is None,
            "baseline-unknown",
            "the active kernel is unknown: no pod has reported it",
        ),
        (facts.slo_firing is not False, "slo-alert", "the service level is unknown or bad"),
        (not facts.pods, "no-pods", "the target has no server"),
        (not any(pod.ready for pod in facts.pods), "pods-not-ready", "no server is ready"),
        (
            bool(facts.unavailable) and not _may_prove(case),
            facts.unavailable,
            facts.unavailable_detail
            or "the policy requires a proof that these servers cannot make; change the policy for "
            "them",
        ),
    )
    return next(((reason, detail) for yes, reason, detail in held if yes), None)


def _may_prove(case: ProposalStep) -> bool:
    """Whether canary replicas prove, or have proven, what cannot be proven in serving pods."""
    if canary.is_due(case):
        return True
    return canary.is_proven(case.status) and case.facts.unavailable == NO_CANARY_REPLICAS


def _begun(case: ProposalStep) -> ProposalStep:
    """Order the first pods to swap; the rollback is recorded before any order."""
    assert case.asked is not None, "the gate has approved"
    assert case.asked.chosen is not None, "by a policy"
    previous = entry_of(case)
    glass = case.asked.answer.reason is GateReason.BREAK_GLASS
    rollout = RolloutStatus(
        started_at=case.now,
        wave_started_at=case.now,
        last_swap_at=case.now,
        previous=previous,
        limited_to=case.asked.chosen.policy.spec.break_glass.max_pods if glass else None,
    )
    if case.status.rollout is not None:  # its orders were withdrawn before any was committed
        rollout = rollout.model_copy(update={"last_epoch": case.status.rollout.last_epoch})
    digest = previous.digest if previous else None
    begun = case.having(rollout=rollout, analysis=AnalysisStatus(), last_stable_digest=digest).to(
        _P.CANARY, "started"
    )
    return told_more(begun)


def _actions(case: ProposalStep) -> tuple[RolloutAction, ...]:
    """Return the writes to other objects that the present state still needs."""
    status, rollout, target = case.status, case.status.rollout, case.facts.target
    found: list[RolloutAction] = []
    if status.phase is _P.ROLLBACK_FAILED:
        found.append(PageOnCall(reason="rollback-failed", detail=status.detail))
    if rollout is None or target is None:
        return tuple(found)
    entry, mine = entry_of(case), case.resource.metadata.name
    if status.phase is _P.PROMOTED and rollout.pods:
        active = orders.active_entry(case.resource, rollout, now=case.now)
        if entry is None or (entry.proposal != mine and entry.epoch < active.epoch):
            found.append(Activate(entry=active))
    back = status.phase.is_going_back or status.phase is _P.ROLLED_BACK
    if back and entry is not None and entry.proposal == mine:
        previous = rollout.previous
        found.append(Activate(entry=previous) if previous else Deactivate(kernel=entry.kernel))
    until, digest = rollout.quarantine_until, case.resource.spec.artifact.digest
    known = any(q.digest == digest and until and q.until >= until for q in target.status.quarantine)
    if back and until is not None and case.now < until and not known:
        reason = cause_of(status)
        found.append(Quarantine(entry=Quarantined(digest=digest, until=until, reason=reason)))
    return tuple(found)


def _again(case: ProposalStep) -> datetime | None:
    """Return when to observe again without an event."""
    if case.phase.is_under_way or case.phase.is_going_back:
        look = waves.next_look_at(case.status, case.rule) if case.rule is not None else None
        soon = case.now + _LOOK_AGAIN
        return min(soon, look) if look is not None and look > case.now else soon
    if not case.phase.is_before_swap:
        return None
    changes = [case.asked.answer.next_change_at] if case.asked else []
    later = [each for each in changes if each is not None and each > case.now]
    return min([case.now + timedelta(minutes=5), *later])
