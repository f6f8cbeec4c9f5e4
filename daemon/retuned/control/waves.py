"""Waves of a rollout: which pods swap next, and how a wave is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from retuned.api.proposal import (
    AnalysisStatus,
    LookOutcome,
    LookStatus,
    PodOrder,
    PodState,
    ProposalPhase,
    RolloutStatus,
    SwapProposal,
    SwapProposalStatus,
)
from retuned.control.analysis import NOTHING, judge
from retuned.control.facts import PodFact, RolloutFacts
from retuned.stages.gate import Rollout
from retuned.stages.gate.limits import RollbackCause
from retuned.stages.watch import WatchAction, WatchReason

_LOOKS_KEPT = 16
BLAMED = frozenset({"compile-failed", "contract-violated", "load-failed", "self-check-failed"})
"""Codes of a server that found the code itself wrong."""
BLAMING = BLAMED | (frozenset(map(str, WatchReason)) - {WatchReason.ORPHANED})
"""Codes of a node's report that blame the artifact. Ranks that differ, and orders that the control
plane does not name any more, do not."""


def wave_size(rule: Rollout, wave: int, *, pods: int) -> int:
    """Return how many pods have an order when a wave is complete.

    Parameters
    ----------
    rule
        The policy's.
    wave
        0 the canary, then the policy's waves from 1.
    pods
        How many there are.

    Examples
    --------
    >>> rule = Rollout(waves=("10%", "100%"))
    >>> [wave_size(rule, wave, pods=25) for wave in (0, 1, 2)]
    [1, 3, 25]
    """
    if wave == 0:
        return min(rule.canary.pods, pods)
    share = int(rule.waves[min(wave, len(rule.waves)) - 1].removesuffix("%"))
    return min(pods, max(math.ceil(pods * share / 100), rule.canary.pods))


def told_to_swap(rollout: RolloutStatus) -> int:
    """Return how many pods have an order to swap."""
    return sum(told.wants is PodState.SWAP for told in rollout.pods)


def in_flight(rollout: RolloutStatus | None) -> int:
    """Return how many pods have an uncommitted order."""
    return sum(not told.done for told in rollout.pods) if rollout else 0


def wanted(rollout: RolloutStatus, rule: Rollout, *, pods: int) -> int:
    """Return how many pods must have it in this wave."""
    size = wave_size(rule, rollout.wave, pods=pods)
    return size if rollout.limited_to is None else min(size, rollout.limited_to)


def next_pods(rollout: RolloutStatus, rule: Rollout, facts: RolloutFacts) -> tuple[PodFact, ...]:
    """Return the pods to swap now: as many as the wave, health and pace allow.

    Pods that do not serve get their order once they do.
    """
    pods = facts.pods
    healthy = sum(pod.ready for pod in pods)
    if not pods or healthy * 100 < rule.min_healthy_percent * len(pods):
        return ()
    elsewhere = sum(in_flight(other.status.rollout) for other in facts.others)
    room = rule.max_concurrent_swaps - in_flight(rollout) - elsewhere
    short = wanted(rollout, rule, pods=len(pods)) - told_to_swap(rollout)
    known = {told.uid for told in rollout.pods}
    fresh = sorted(
        (pod for pod in pods if pod.ready and pod.uid not in known), key=lambda p: (p.name, p.uid)
    )
    return tuple(fresh[: max(0, min(room, short))])


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedHarm:
    """Why a swap is rolled back."""

    reason: str
    detail: str = ""
    blames: bool = True
    """Whether the artifact is blamed: then it is quarantined."""


def harm_in_pods(
    resource: SwapProposal, facts: RolloutFacts, rule: Rollout | None
) -> DetectedHarm | None:
    """Return the harm in a pod that runs the artifact, or None.

    The watch always counts. Crashes and alerts count if the policy lists them, and if the policy is
    unknown.
    """
    rollout = resource.status.rollout
    told = {t.uid: t for t in rollout.pods if t.wants is PodState.SWAP} if rollout else {}
    mine = [
        pod for pod in facts.pods if pod.uid in told or pod.active == resource.spec.artifact.digest
    ]
    for pod in mine:
        if pod.tripped:
            orphaned = pod.tripped == WatchReason.ORPHANED
            return DetectedHarm(
                reason=str(WatchReason.ORPHANED if orphaned else WatchReason.TRIPPED),
                detail=f"{pod.name}: {pod.tripped}",
                blames=not orphaned,
            )
        if pod.report is not None and pod.report.action is WatchAction.ROLLBACK:
            return DetectedHarm(
                reason=pod.report.reason,
                detail=f"{pod.name}: {pod.report.detail}",
                blames=pod.report.reason in BLAMING,
            )
    if rule is not None and not rule.auto_rollback.enabled:
        return None
    causes = set(RollbackCause) if rule is None else set(rule.auto_rollback.on)
    crashed = [pod.name for pod in mine if _has_ended(pod, told.get(pod.uid))]
    if crashed and RollbackCause.POD_CRASH in causes:
        return DetectedHarm(reason="pod-crash", detail=", ".join(crashed[:8]))
    if facts.slo_firing and mine and RollbackCause.SLO_ALERT in causes:
        return DetectedHarm(reason="slo-alert", detail="an alert on the service level fires")
    return None


def _has_ended(pod: PodFact, told: PodOrder | None) -> bool:
    """Whether a server's container ended since its order. It compares counts: clocks may differ."""
    return told is not None and told.ends is not None and pod.ends > told.ends


_MEASURED = (ProposalPhase.ANALYZING, ProposalPhase.PROVING, ProposalPhase.WATCHING)


def look_is_due(status: SwapProposalStatus, rule: Rollout, *, now: datetime) -> bool:
    """Whether it is time to measure a wave."""
    due = next_look_at(status, rule)
    return due is not None and now >= due


def next_look_at(status: SwapProposalStatus, rule: Rollout) -> datetime | None:
    """Return when a wave has baked and the measurement interval is over; None if none is due."""
    rollout, phase = status.rollout, status.phase
    if rollout is None or phase not in _MEASURED:
        return None
    bake = rule.canary.bake if rollout.wave == 0 else timedelta(0)
    if phase is ProposalPhase.WATCHING:
        bake = rule.post_promotion_watch
    since = rollout.wave_started_at
    last = max([since, *(look.at for look in status.analysis.last)])
    return max(since + bake, last + rule.analysis.interval)


def look(
    rollout: RolloutStatus, facts: RolloutFacts, rule: Rollout, *, now: datetime
) -> LookStatus:
    """Measure the swapped pods now. Missing data is never a pass."""
    told = {each.uid for each in rollout.pods if each.wants is PodState.SWAP}
    silent = sorted(
        pod.name
        for pod in facts.pods
        if pod.uid in told and (pod.report is None or pod.report.action is not WatchAction.KEEP)
    )
    seen = facts.metrics or {}
    said = [judge(metric, seen.get(metric.name, NOTHING)) for metric in rule.analysis.metrics]
    failed = [each.sentence for each in said if each.outcome is LookOutcome.FAILED]
    unknown = [each.sentence for each in said if each.outcome is LookOutcome.INCONCLUSIVE]
    if failed:
        return LookStatus(
            at=now, outcome=LookOutcome.FAILED, reason="metric-failed", detail=_some(failed, "; ")
        )
    if unknown:
        no_data, detail = LookOutcome(rule.analysis.no_data_as), _some(unknown, "; ")
        return LookStatus(at=now, outcome=no_data, reason="metric-no-data", detail=detail)
    if silent or not told:
        return LookStatus(
            at=now,
            outcome=LookOutcome.INCONCLUSIVE,
            reason="pods-not-proven",
            detail=_some(silent),
        )
    return LookStatus(at=now, outcome=LookOutcome.PASSED, reason="clean")


def counted(analysis: AnalysisStatus, new: LookStatus) -> AnalysisStatus:
    """Return the measurements with one more; inconclusive ones count in a row."""
    passed = new.outcome is LookOutcome.PASSED
    unknown = new.outcome is LookOutcome.INCONCLUSIVE
    return AnalysisStatus(
        passed=analysis.passed + passed,
        failed=analysis.failed + (new.outcome is LookOutcome.FAILED),
        inconclusive=analysis.inconclusive + 1 if unknown else 0,
        last=(*analysis.last, new)[-_LOOKS_KEPT:],
    )


def busy_elsewhere(others: Sequence[SwapProposal]) -> str:
    """Return the name of another active rollout of the same target, or an empty text."""
    for other in others:
        phase = other.status.phase
        if phase.is_under_way or phase.is_going_back:
            return other.metadata.name
    return ""


def last_swap_elsewhere(others: Sequence[SwapProposal]) -> datetime | None:
    """Return when another proposal last ordered a pod of the same target to swap."""
    times = [
        other.status.rollout.last_swap_at for other in others if other.status.rollout is not None
    ]
    return max(times, default=None)


def newer(resource: SwapProposal, others: Sequence[SwapProposal]) -> str:
    """Return the name of a newer live proposal for the same kernel, or an empty text."""
    dead = {ProposalPhase.INVALID}
    mine = (resource.metadata.creation_timestamp, resource.metadata.name)
    for other in others:
        theirs = (other.metadata.creation_timestamp, other.metadata.name)
        if (
            other.spec.kernel == resource.spec.kernel
            and other.status.phase not in dead
            and None not in (mine[0], theirs[0])
            and theirs > mine
        ):
            return other.metadata.name
    return ""


def _some(names: Sequence[str], between: str = ", ") -> str:
    return between.join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
