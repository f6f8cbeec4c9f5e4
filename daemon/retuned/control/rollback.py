"""Reasons to roll back: people, pods, freezes, measurements and windows, in order of harm."""

from __future__ import annotations

from datetime import timedelta

from retuned.api.proposal import PodState, ProposalPhase
from retuned.control import gate_facts, orders, waves
from retuned.control.proposal_step import ProposalStep, entry_of
from retuned.control.waves import DetectedHarm
from retuned.stages import gate
from retuned.stages.gate import StopPolicy
from retuned.stages.watch import Consequence

SWAP_PATIENCE = timedelta(minutes=10)
"""A pod that has not swapped after this time will not; all pods roll back."""
_P = ProposalPhase


def harm_of(case: ProposalStep) -> DetectedHarm | None:
    """Return why a swap is rolled back; never gated by window, freeze or approval."""
    resource, facts, asked = case.resource, case.facts, case.asked
    if facts.target is None:  # orders no longer reach them: pods that no target selects roll back
        detail = "the target was deleted; its pods roll back by themselves"
        return DetectedHarm(reason="target-gone", detail=detail, blames=False)
    if resource.spec.abort.requested:
        return DetectedHarm(reason="aborted", detail=resource.spec.abort.reason, blames=False)
    said_no = _said_no(case)
    if said_no is not None:
        return said_no
    suffered = waves.harm_in_pods(resource, facts, case.rule)
    if suffered is not None:
        return suffered
    frozen = _frozen_back(case)
    if frozen is not None:
        return frozen
    if case.status.rollout is None:
        return None
    promoted = case.phase is _P.PROMOTED
    before = () if promoted else (facts.end_to_end, facts.live_proof)
    for measured in (*before, facts.repeated_proof):
        if measured.consequence is Consequence.REVERT:
            return DetectedHarm(
                reason=measured.reason, detail=measured.detail, blames=measured.blames
            )
    if promoted:
        return None
    undone = _refused(case) or _late(case)
    if undone is not None:
        return undone
    rule = case.rule
    if rule is not None and case.status.analysis.failed > rule.analysis.failure_limit:
        return DetectedHarm(reason="analysis-failed", detail=case.status.analysis.last[-1].detail)
    begun = orders.recalled(case.status.rollout, facts.pods).pods  # others wait for a window
    if begun and asked is not None and asked.chosen is not None:
        windows, started = asked.chosen.policy.spec.windows, case.status.rollout.started_at
        glass = case.status.rollout.limited_to is not None and not (
            asked.windows is not None and asked.windows.denied
        )
        if not glass and not gate.may_finish(windows, started=started, now=case.now):
            why = asked.windows.why if asked.windows else ""
            return DetectedHarm(reason="window-closed", detail=why, blames=False)
    return None


def _refused(case: ProposalStep) -> DetectedHarm | None:
    """Return the refusal of a pod that will not swap: waiting is useless then.

    If a server found the code wrong, the artifact is blamed. A signature, an order or a server that
    cannot take it is not a reason for blame.
    """
    assert case.status.rollout is not None, "the caller has seen it"
    pods = {pod.uid: pod for pod in case.facts.pods}
    for told in case.status.rollout.pods:
        if told.done or told.wants is not PodState.SWAP or told.uid not in pods:
            continue
        held = orders.held_of(pods[told.uid], told)
        if held is not None and held.final:
            detail = f"{told.name}: {held.reason}" + (f": {held.detail}" if held.detail else "")
            return DetectedHarm(
                reason="order-refused", detail=detail, blames=held.reason in waves.BLAMED
            )
    return None


def _late(case: ProposalStep) -> DetectedHarm | None:
    """Return the harm of a pod that is late with its order; the artifact is not blamed."""
    assert case.status.rollout is not None, "the caller has seen it"
    late = [
        f"{told.name} ({told.held})" if told.held else told.name
        for told in case.status.rollout.pods
        if not told.done and case.now >= told.since + SWAP_PATIENCE
    ]
    return (
        DetectedHarm(reason="swap-timeout", detail=", ".join(late[:8]), blames=False)
        if late
        else None
    )


def _said_no(case: ProposalStep) -> DetectedHarm | None:
    """Return the rejection or abort of this very artifact, whenever it was made."""
    decisions = case.facts.decisions or ()
    metadata, spec = case.resource.metadata, case.resource.spec
    for each in decisions:
        ref = each.spec.proposal_ref
        if (
            (ref.name, ref.uid) == (metadata.name, metadata.uid)
            and each.spec.digest == spec.artifact.digest
            and each.spec.decision in (gate.DecisionKind.REJECT, gate.DecisionKind.ABORT)
        ):
            return DetectedHarm(reason="said-no", detail=f"by {each.spec.user}", blames=False)
    return None


def _frozen_back(case: ProposalStep) -> DetectedHarm | None:
    """Return the freeze that rolls it back: a drain rolls back rollouts, a rollback all swaps."""
    if case.facts.freezes is None:
        return None
    proposal = case.resource.stage_proposal()
    for each in gate_facts.standing(case.facts.freezes, proposal, now=case.now):
        drains = each.stop_policy is StopPolicy.HOLD_AND_DRAIN and case.phase is not _P.PROMOTED
        if drains or each.stop_policy is StopPolicy.HOLD_AND_ROLLBACK:
            return DetectedHarm(reason="freeze", detail=f"{each.id} by {each.user}", blames=False)
    return None


def has_strayed(case: ProposalStep) -> bool:
    """Whether a pod that was not observed for a while still runs a rolled back artifact."""
    artifact, entry = case.resource.spec.artifact.digest, entry_of(case)
    if entry is not None and entry.digest == artifact:
        return False
    again = any(
        other.spec.artifact.digest == artifact and other.status.phase.is_under_way
        for other in case.facts.others
    )
    return not again and any(pod.active == artifact for pod in case.facts.pods)
