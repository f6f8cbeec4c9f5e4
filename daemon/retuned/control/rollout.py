"""The rollout of a swap over the pods, and its rollback, which comes first."""

from __future__ import annotations

from datetime import timedelta

from retuned.api.proposal import AnalysisStatus, GateStatus, PodState, ProposalPhase, RolloutStatus
from retuned.control import gate_facts, orders, waves
from retuned.control.proposal_step import ProposalStep, cause_of, entry_of, is_quarantined, noted
from retuned.control.rollback import harm_of
from retuned.control.waves import DetectedHarm
from retuned.stages.gate import GateReason, GateState, Mode, Rollout
from retuned.stages.watch import Consequence

DEFAULT_QUARANTINE = timedelta(days=7)
"""Applies if no policy sets one."""
ROLLBACK_PATIENCE = timedelta(minutes=2)
"""A pod that has not rolled back after this time needs a person; its order is still repeated."""
_P = ProposalPhase


def after(case: ProposalStep) -> ProposalStep:
    """Roll back if there is a reason; else advance."""
    rollout = case.status.rollout
    if rollout is None:  # the orders are unknown: every pod that runs it rolls back
        rollout = RolloutStatus(
            started_at=case.now, wave_started_at=case.now, last_swap_at=case.now
        )
        return back(case.having(rollout=rollout), DetectedHarm(reason="rollout-lost", blames=False))
    if case.phase is _P.PROMOTED:
        return _promoted(case)
    seen = orders.observed(case.resource, rollout, case.facts.pods, now=case.now)
    case = case.having(rollout=seen)
    harm = harm_of(case)
    if harm is not None:
        return back(case, harm)
    case = _agreed_anew(case, seen)
    may_go_on, why = _may_go_on(case)
    if case.phase is _P.PAUSED:
        return _paused(case)
    if may_go_on:
        return _looked(told_more(case), may_go_on=True)
    case = _recalled(case.to(case.phase, why), why)
    return case if case.phase.is_before_swap else _looked(case, may_go_on=False)


def _promoted(case: ProposalStep) -> ProposalStep:
    """Roll back a promoted swap if a person, a freeze or the watch demands it."""
    entry = entry_of(case)
    if entry is not None and entry.proposal != case.resource.metadata.name:
        return case  # another one replaced it
    harm = harm_of(case)
    if harm is None and entry is not None and _is_displaced(case):
        detail = "the servers run another variant or the original"
        harm = DetectedHarm(reason="not-in-force", detail=detail, blames=False)
    return back(case, harm) if harm is not None else case


def _is_displaced(case: ProposalStep) -> bool:
    """Whether every pod runs something else under a later order, and no rollout explains that.

    That happens if a rollback to this artifact was not possible, and the original serves instead.
    """
    kernel, artifact = case.resource.spec.kernel, case.resource.spec.artifact.digest
    rollout = case.status.rollout
    last = max((told.epoch for told in rollout.pods), default=0) if rollout else 0
    busy = any(
        other.spec.kernel == kernel
        and (other.status.phase.is_under_way or other.status.phase.is_going_back)
        for other in case.facts.others
    )
    pods = [pod for pod in case.facts.pods if pod.ready]
    elsewhere = [pod.active != artifact and pod.epoch > last for pod in pods]
    return not busy and last > 0 and bool(elsewhere) and all(elsewhere)


def _agreed_anew(case: ProposalStep, rollout: RolloutStatus) -> ProposalStep:
    """Record the latest approval and the number of nodes it covers.

    A break-glass approval covers at most `breakGlass.maxPods` nodes, whenever it is given. A quorum
    under the current policy covers all nodes.
    """
    if case.asked is None or case.asked.answer.state is not GateState.APPROVED:
        return case
    assert case.asked.chosen is not None, "the gate approved it by a policy"
    limit = None
    if case.asked.answer.reason is GateReason.BREAK_GLASS and not gate_facts.agreed_without_glass(
        case.resource, case.facts, now=case.now
    ):
        limit = case.asked.chosen.policy.spec.break_glass.max_pods
    return noted(case).having(rollout=rollout.model_copy(update={"limited_to": limit}))


def _may_go_on(case: ProposalStep) -> tuple[bool, str]:
    """Whether the next pod may swap: approved under this very policy, window open, not frozen.

    An approval that has taken effect does not expire. Another policy needs a new approval.
    """
    asked, gated = case.asked, case.status.gate
    if asked is None or asked.chosen is None or asked.windows is None or gated is None:
        return False, "unreadable"
    if asked.chosen.policy.spec.mode is not Mode.ENFORCE:
        return False, "policy-mode"
    if asked.frozen_by:
        return False, "frozen"
    glass = case.status.rollout is not None and case.status.rollout.limited_to is not None
    if not asked.windows.allowed and (asked.windows.denied or not glass):
        return False, "window-closed"
    if is_quarantined(case):
        return False, "quarantined"
    if asked.answer.state is GateState.APPROVED:
        return True, ""
    same = (gated.policy_digest, gated.policy_generation) == (
        asked.chosen.policy.digest,
        asked.chosen.generation,
    )
    if asked.answer.state is GateState.EXPIRED and same and _was_agreed(gated):
        return True, ""
    return False, "approval-outdated"


def _recalled(case: ProposalStep, why: str) -> ProposalStep:
    """Take back the orders that no process has committed; without any other, wait again."""
    assert case.status.rollout is not None, "the caller has seen it"
    rollout = orders.recalled(case.status.rollout, case.facts.pods)
    case = case.having(rollout=rollout)
    return case if rollout.pods or case.phase is not _P.CANARY else case.to(_P.SCHEDULED, why)


def _was_agreed(gated: GateStatus) -> bool:
    return gated.state is GateState.APPROVED


def told_more(case: ProposalStep) -> ProposalStep:
    """Order the next pods of the wave to swap."""
    rollout, rule = case.status.rollout, case.rule
    if rollout is None or rule is None:
        return case
    more = waves.next_pods(rollout, rule, case.facts)
    epoch = orders.next_epoch(rollout, case.facts.pods)
    told = orders.tell(rollout, more, wants=PodState.SWAP, epoch=epoch, now=case.now)
    if told is rollout:
        return case
    case = case.having(rollout=told)
    if case.phase in (_P.ANALYZING, _P.PROVING):  # late pods are part of the wave
        phase = _P.CANARY if told.wave == 0 else _P.PROMOTING
        return case.to(phase, "pods-joined")
    return case


def _looked(case: ProposalStep, *, may_go_on: bool) -> ProposalStep:
    """Measure the wave once all of it is swapped; advance to the next when it passed."""
    rollout, rule = case.status.rollout, case.rule
    if rollout is None or rule is None:
        return case
    size = waves.wanted(rollout, rule, pods=len(case.facts.pods))
    complete = size > 0 and waves.told_to_swap(rollout) >= size
    if not complete or waves.in_flight(rollout):
        return case
    if case.phase in (_P.CANARY, _P.PROMOTING):
        began = rollout.model_copy(update={"wave_started_at": case.now})
        return case.having(rollout=began, analysis=AnalysisStatus()).to(_P.ANALYZING, "watching")
    if not waves.look_is_due(case.status, rule, now=case.now):
        return case
    analysis = case.status.analysis
    new = waves.look(rollout, case.facts, rule, now=case.now)
    case = case.having(analysis=waves.counted(analysis, new))
    harm = harm_of(case)
    if harm is not None:
        return back(case, harm)
    return _concluded(case, rollout, rule, may_go_on=may_go_on)


def _concluded(
    case: ProposalStep, rollout: RolloutStatus, rule: Rollout, *, may_go_on: bool
) -> ProposalStep:
    """Return what the newest measurement leads to."""
    newest = case.status.analysis.last[-1]
    if newest.outcome != "Passed":
        too_many = case.status.analysis.inconclusive > rule.analysis.inconclusive_limit
        if too_many and case.phase in (_P.ANALYZING, _P.PROVING):
            return case.to(_P.PAUSED, newest.reason, newest.detail)
        return case.to(case.phase, newest.reason, newest.detail)
    everywhere = waves.told_to_swap(rollout) >= len(case.facts.pods)
    if case.phase is _P.WATCHING:
        if not everywhere:
            return case.to(_P.WATCHING, "not-everywhere")
        if case.facts.end_to_end.consequence is Consequence.WAIT:
            return case.to(_P.WATCHING, "end-to-end-running")
        if case.facts.live_proof.consequence is Consequence.WAIT:  # the policy asks since then
            return case.to(_P.PROVING, "live-proof-running")
        return case.to(_P.PROMOTED, "proven") if may_go_on else case
    if case.facts.live_proof.consequence is Consequence.WAIT:
        return case.to(_P.PROVING, "live-proof-running")
    if everywhere or rollout.wave >= len(rule.waves):
        began = rollout.model_copy(update={"wave_started_at": case.now, "wave": len(rule.waves)})
        watching = case.having(rollout=began, analysis=AnalysisStatus())
        return watching.to(_P.WATCHING, "last-wave")
    if not may_go_on:
        return case
    following = rollout.model_copy(update={"wave": rollout.wave + 1, "wave_started_at": case.now})
    case = case.having(rollout=following, analysis=AnalysisStatus()).to(_P.PROMOTING, "next-wave")
    return told_more(case)


def _paused(case: ProposalStep) -> ProposalStep:
    """Wait for a person to inspect and decide."""
    since = next(
        (each.at for each in reversed(case.status.history) if each.to is _P.PAUSED), case.now
    )
    chosen = case.asked.chosen if case.asked else None
    uid = gate_facts.resumes(case.resource, case.facts, chosen, since=since, now=case.now)
    if uid is None:
        return case
    used = (*case.status.resumed, uid)[-64:]
    return case.having(resumed=used, analysis=AnalysisStatus()).to(_P.ANALYZING, "resumed")


def back(case: ProposalStep, harm: DetectedHarm) -> ProposalStep:
    """Roll back every pod that got the order or runs it; nothing delays this."""
    rollout = case.status.rollout
    assert rollout is not None, "the caller has made one"
    rule = case.rule
    until = case.now + (rule.auto_rollback.quarantine if rule else DEFAULT_QUARANTINE)
    update = {"back_since": case.now, "quarantine_until": until if harm.blames else None}
    case = case.having(rollout=rollout.model_copy(update=update))
    return case.to(_P.ROLLING_BACK, harm.reason, harm.detail)


def _is_refused(case: ProposalStep, rollout: RolloutStatus) -> bool:
    """Whether a pod's server refuses to roll back, even to the original."""
    pods = {pod.uid: pod for pod in case.facts.pods}
    held = [orders.held_of(pods[t.uid], t) for t in rollout.pods if t.uid in pods and not t.done]
    return any(each is not None and each.final for each in held)


def going_back(case: ProposalStep) -> ProposalStep:
    """Order the remaining pods to roll back, and end when all have."""
    rollout = case.status.rollout
    if rollout is None:
        return case.to(_P.ROLLED_BACK, "nothing-swapped")
    seen = orders.observed(case.resource, rollout, case.facts.pods, now=case.now)
    forward = {told.uid for told in seen.pods if told.wants is PodState.SWAP}
    known = {told.uid for told in seen.pods}
    artifact = case.resource.spec.artifact.digest
    due = [
        pod
        for pod in case.facts.pods
        if pod.uid in forward or (pod.uid not in known and pod.active == artifact)
    ]
    epoch = orders.next_epoch(seen, case.facts.pods)
    seen = orders.tell(seen, due, wants=PodState.BACK, epoch=epoch, now=case.now)
    case = case.having(rollout=seen)
    if not waves.in_flight(seen):
        return case.to(_P.ROLLED_BACK, cause_of(case.status))
    since = seen.back_since or case.now
    if case.now >= since + ROLLBACK_PATIENCE or _is_refused(case, seen):
        late = [told.name for told in seen.pods if not told.done]
        return case.to(_P.ROLLBACK_FAILED, "rollback-failed", ", ".join(late[:16]))
    return case
