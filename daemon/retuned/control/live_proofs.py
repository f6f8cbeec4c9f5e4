"""Live proofs by node agents: which pod of a wave proves, and what its report means. Pure.

One pod of each environment of a wave proves for the others. The status names it, so that a
restarted operator asks for the same proof. A pod that is gone is replaced by another one of its
environment; a pod that does not report a verdict in time ends the proof without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from retuned.api.agent import MAX_PROOFS, LevelsState, ProofOrder
from retuned.api.proposal import (
    LiveProofStatus,
    PodOrder,
    PodState,
    ProposalPhase,
    RolloutStatus,
    SwapProposal,
)
from retuned.api.replicas import ReplicaProofStatus
from retuned.api.step_accounts import account_status
from retuned.control.facts import MeasuredFact, PodFact
from retuned.control.orders import order_for
from retuned.control.proposal_step import ProposalStep
from retuned.stages.gate import LiveProof, LiveProofMode, NotSwitchable
from retuned.stages.watch import Consequence
from retuned.stages.watch.proof import (
    Phase,
    ProofReason,
    ProofReport,
    Verdict,
    keeps,
    settings_of,
)

_LATE = timedelta(minutes=5)
"""A verdict that is so much later than the longest duration does not come."""
_LONGEST = timedelta(hours=2)
"""Longest proof by a node agent: its report has at most 4,096 pairs."""
_PARTS = ("", str(Phase.PILOT), str(Phase.SHORT), str(Phase.LONG))
"""Parts of a proof without a verdict, in their order; a pod reports none twice."""
_SENTENCE = 1000
"""Longest sentence: a pod's numbers may be part of it."""
_KEPT = 64
"""Proofs in a status, the newest."""
NOT_SWITCHABLE = f"live-proof-{ProofReason.NOT_SWITCHABLE}"
UNAVAILABLE = "live-proof-unavailable"
"""Reason that holds a swap which a required live proof cannot measure."""
NO_CANARY_REPLICAS = "canary-replicas-unavailable"
"""Reason that holds a swap which canary replicas are to prove: nothing starts replicas for it."""
_NO_LEVELS = str(ProofReason.NO_SERVICE_LEVELS)


def held(rule: LiveProof, why: str) -> str:
    """Return the reason code that holds a swap which cannot be proven; empty if none does.

    Parameters
    ----------
    rule
        The policy's rule now.
    why
        Why no live proof is possible, a reason code; empty if one is.

    Examples
    --------
    >>> held(LiveProof(mode=LiveProofMode.REQUIRED), "not-switchable")
    'live-proof-unavailable'
    """
    if rule.mode is not LiveProofMode.REQUIRED or not why:
        return ""
    if why != ProofReason.NOT_SWITCHABLE:
        return UNAVAILABLE
    match rule.when_not_switchable:
        case NotSwitchable.REFUSE:
            return UNAVAILABLE
        case NotSwitchable.CANARY:
            return NO_CANARY_REPLICAS
        case NotSwitchable.KEEP:
            return ""


def observed(
    resource: SwapProposal, pods: Iterable[PodFact], *, rule: LiveProof, now: datetime
) -> tuple[LiveProofStatus, ...]:
    """Return the proofs of a proposal with what the pods report.

    Parameters
    ----------
    resource
        The proposal as stored.
    pods
        Every pod of the target.
    rule
        The policy's rule now.
    now
        Moment, with a zone.
    """
    facts, rollout = {pod.uid: pod for pod in pods}, resource.status.rollout
    epochs = {t.uid: t.epoch for t in rollout.pods if _swaps(t.wants)} if rollout else {}
    return tuple(
        each
        if each.verdict
        else _observed(each, facts.get(each.uid), epochs.get(each.uid), rule=rule, now=now)
        for each in resource.status.live_proofs
    )


def measured(
    proofs: Sequence[LiveProofStatus],
    rollout: RolloutStatus | None,
    pods: Sequence[PodFact],
    *,
    rule: LiveProof,
    replicas: ReplicaProofStatus | None = None,
) -> MeasuredFact:
    """Return what the proofs mean for a swap under way.

    Parameters
    ----------
    proofs
        As `observed` returns them.
    rollout
        Its rollout; None before it began.
    pods
        Every pod of the target.
    rule
        The policy's rule now.
    replicas
        Proof by canary replicas, which counts for all pods of its environment; None without one.
    """
    if rule.mode is LiveProofMode.OFF or rollout is None:
        return MeasuredFact()
    required = rule.mode is LiveProofMode.REQUIRED
    bad = [each for each in proofs if each.verdict and not each.kept]
    if bad and required:
        return _meaning(min(bad, key=lambda each: each.verdict != Verdict.HARMS))
    swapped = _swapped(rollout, pods)
    if any(not each.verdict for each in proofs) or any(p.environment is None for p in swapped):
        return MeasuredFact(consequence=Consequence.WAIT)
    for environment in _due(proofs, rollout, swapped):
        if environment == proven_by_boots(replicas):
            continue
        pool = _unproven(environment, proofs, swapped)
        reasons = {pod.name: why_not(pod, rule) for pod in pool}
        if None in reasons.values():
            return MeasuredFact(consequence=Consequence.WAIT)
        refusing = {name: why for name, why in reasons.items() if held(rule, why or "")}
        if refusing:
            return _no_pod_can(refusing)
    return MeasuredFact()


def proven_by_boots(replicas: ReplicaProofStatus | None) -> str | None:
    """Return the environment whose pods need no separate proof any more; None without one."""
    proven = replicas is not None and replicas.verdict and replicas.kept
    return replicas.environment if replicas is not None and proven else None


def asked(case: ProposalStep, *, rule: LiveProof) -> ProposalStep:
    """Ask pods of the wave for the proofs that it still needs."""
    rollout, proofs = case.status.rollout, case.status.live_proofs
    if rollout is None or case.phase is not ProposalPhase.PROVING or rule.mode is LiveProofMode.OFF:
        return case
    swapped = _swapped(rollout, case.facts.pods)
    epochs = {told.uid: told.epoch for told in rollout.pods}
    found = [
        each
        if each.verdict or each.uid in epochs
        else _replaced(each, proofs, swapped, epochs=epochs)
        for each in proofs
    ]
    running = {each.environment for each in found if not each.verdict}
    for environment in _due(found, rollout, swapped):
        if environment == proven_by_boots(case.status.replicas):
            continue
        pod = _prover(environment, found, swapped, rule=rule)
        if environment in running or pod is None:
            continue
        found.append(
            LiveProofStatus(
                name=pod.name,
                uid=pod.uid,
                epoch=epochs[pod.uid],
                environment=environment,
                wave=rollout.wave,
                swapped=sum(each.environment == environment for each in swapped),
                since=case.now,
                rule=rule.model_copy(update={"max_duration": min(rule.max_duration, _LONGEST)}),
            )
        )
    return case.having(live_proofs=tuple(found[-_KEPT:]))


def proof_orders(uid: str, proposals: Iterable[SwapProposal]) -> tuple[ProofOrder, ...]:
    """Return the swaps that a pod is to prove.

    A swap that the verdict rolls back remains named until its rollback is ordered: a node agent
    switches on swaps for which no proof is ordered.
    """
    return tuple(_orders(uid, proposals))[:MAX_PROOFS]


def _orders(uid: str, proposals: Iterable[SwapProposal]) -> Iterator[ProofOrder]:
    for resource in proposals:
        rollout = resource.status.rollout
        if rollout is None or not resource.status.phase.is_under_way:
            continue
        told = next((t for t in rollout.pods if t.uid == uid and _swaps(t.wants)), None)
        for each in resource.status.live_proofs:
            if each.uid != uid or told is None or each.epoch != told.epoch:
                continue
            if not each.verdict or (each.rule.mode is LiveProofMode.REQUIRED and not each.kept):
                yield order_of(resource, told, each.rule)


def order_of(
    resource: SwapProposal, told: PodOrder, rule: LiveProof, *, sentinel: bool = False
) -> ProofOrder:
    """Return the order for a pod to prove a swap, or with `sentinel` to measure it."""
    order = order_for(resource, told)
    return ProofOrder(
        order=order.id,
        proposal=order.proposal,
        definition=order.definition,
        epoch=order.epoch,
        rule=rule,
        sentinel=sentinel,
    )


def why_not(pod: PodFact, rule: LiveProof) -> str | None:
    """Return why no swap can be proven in a pod, a stable code; None if one can, or soon may.

    Parameters
    ----------
    pod
        The pod.
    rule
        The policy's rule, which may ask for service levels.
    """
    said = pod.proof
    if not rule.switching:
        return str(ProofReason.NOT_SWITCHABLE)
    if said is None:
        return "not-reported"
    if said.unavailable and not said.temporary:
        return said.unavailable
    return _NO_LEVELS if rule.slo.asked and said.levels is LevelsState.ABSENT else None


def why_not_now(pod: PodFact, rule: LiveProof) -> str | None:
    """Return as `why_not`, also where the reason may pass; None if a swap can be proven now."""
    said, lasting = pod.proof, why_not(pod, rule)
    if lasting is not None or said is None:
        return lasting
    if said.unavailable:
        return said.unavailable
    return _NO_LEVELS if rule.slo.asked and said.levels is not LevelsState.READ else None


def _observed(
    entry: LiveProofStatus,
    pod: PodFact | None,
    epoch: int | None,
    *,
    rule: LiveProof,
    now: datetime,
) -> LiveProofStatus:
    """Return a proof without a verdict as its pod reports it."""
    if not rule.switches:
        return _without_verdict(entry, "the policy allows no such proof any more", now=now)
    if epoch is not None and epoch != entry.epoch:  # the order was made again
        entry = entry.model_copy(update={"epoch": epoch, "phase": ""})
    said = pod.proof if pod is not None else None
    if said is not None and said.epoch == entry.epoch:
        if said.report is not None:
            after = concluded(entry, said.report, sentence=said.sentence, now=now)
            return after.model_copy(update={"account": account_status(said.report.account)})
        if said.phase in _PARTS and _PARTS.index(said.phase) > _PARTS.index(entry.phase):
            entry = entry.model_copy(update={"phase": said.phase})
    if now >= _deadline(entry):
        detail = f"{entry.name} has reported no verdict in its time"
        return _without_verdict(entry, detail, now=now)
    return entry


def concluded(
    entry: LiveProofStatus, report: ProofReport, *, sentence: str, now: datetime
) -> LiveProofStatus:
    """Return a proof with its verdict."""
    required = entry.rule.model_copy(update={"mode": LiveProofMode.REQUIRED})
    return entry.model_copy(
        update={
            "phase": str(Phase.DONE),
            "verdict": str(report.verdict),
            "reason": str(report.reason),
            "sentence": sentence[:_SENTENCE],
            "kept": keeps(report, required),
            "at": now,
            "effect": report.effect,
            "low": report.low,
            "high": report.high,
            "pairs": report.pairs,
        }
    )


def _without_verdict(entry: LiveProofStatus, sentence: str, *, now: datetime) -> LiveProofStatus:
    report = ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.INTERRUPTED)
    return concluded(entry, report, sentence=sentence, now=now)


def _deadline(entry: LiveProofStatus) -> datetime:
    long_s = settings_of(entry.rule).long_within_s if entry.phase == Phase.LONG else 0.0
    return entry.since + entry.rule.max_duration + timedelta(seconds=long_s) + _LATE


def _meaning(entry: LiveProofStatus) -> MeasuredFact:
    return MeasuredFact(
        consequence=Consequence.REVERT,
        reason=f"live-proof-{entry.reason}",
        detail=f"{entry.name}: {entry.sentence}",
        blames=entry.verdict == Verdict.HARMS,
    )


def _no_pod_can(reasons: Mapping[str, str | None]) -> MeasuredFact:
    """Return what follows where no pod of an environment can prove a swap, by its name."""
    no_levels = set(reasons.values()) == {_NO_LEVELS}
    return MeasuredFact(
        consequence=Consequence.REVERT,
        reason=f"live-proof-{_NO_LEVELS}" if no_levels else NOT_SWITCHABLE,
        detail=", ".join(f"{name}: {why}" for name, why in list(reasons.items())[:8]),
        blames=False,
    )


def _swaps(wants: PodState) -> bool:
    return wants is PodState.SWAP


def _swapped(rollout: RolloutStatus, pods: Iterable[PodFact]) -> list[PodFact]:
    """Return the pods that run the swap, in the order of their names."""
    done = {told.uid for told in rollout.pods if told.done and _swaps(told.wants)}
    return sorted((pod for pod in pods if pod.uid in done), key=lambda pod: (pod.name, pod.uid))


def _due(
    proofs: Sequence[LiveProofStatus], rollout: RolloutStatus, swapped: Sequence[PodFact]
) -> list[str]:
    """Return the environments that need a proof: new ones, and those that the wave has enlarged.

    A wave has one proof of an environment, also if pods join it later.
    """
    due = []
    for environment in dict.fromkeys(pod.environment for pod in swapped):
        if environment is None:
            continue
        mine = [each for each in proofs if each.environment == environment]
        count = sum(pod.environment == environment for pod in swapped)
        if not mine or (rollout.wave > mine[-1].wave and count > mine[-1].swapped):
            due.append(environment)
    return due


def _unproven(
    environment: str, proofs: Iterable[LiveProofStatus], swapped: Iterable[PodFact]
) -> list[PodFact]:
    """Return the pods of an environment that no proof was asked of."""
    known = {each.uid for each in proofs}
    return [pod for pod in swapped if pod.environment == environment and pod.uid not in known]


def _prover(
    environment: str,
    proofs: Iterable[LiveProofStatus],
    swapped: Iterable[PodFact],
    *,
    rule: LiveProof,
) -> PodFact | None:
    """Return the pod that shall prove: one that can begin now, else one that soon can."""
    able = [
        pod
        for pod in _unproven(environment, proofs, swapped)
        if pod.ready and why_not(pod, rule) is None
    ]
    return min(able, key=lambda pod: why_not_now(pod, rule) is not None, default=None)


def _replaced(
    entry: LiveProofStatus,
    proofs: Iterable[LiveProofStatus],
    swapped: Iterable[PodFact],
    *,
    epochs: Mapping[str, int],
) -> LiveProofStatus:
    """Return a proof of a pod that is gone in another pod; its time goes on."""
    pod = _prover(entry.environment, proofs, swapped, rule=entry.rule)
    if pod is None:
        return entry
    update = {"name": pod.name, "uid": pod.uid, "epoch": epochs[pod.uid], "phase": ""}
    return entry.model_copy(update=update)
