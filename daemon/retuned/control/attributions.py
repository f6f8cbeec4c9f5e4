"""Alarms by node agents: which swaps they may try off, and what a trial means. Pure.

A pod whose kernel times change switches its own swaps off as a test. The operator names the swaps
and the rule. Only harm follows from a trial, as from a day of a sentinel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from retuned.api.agent import MAX_ALARMS, AlarmOrder
from retuned.api.proposal import LiveProofStatus, PodOrder, PodState, ProposalPhase, SwapProposal
from retuned.control.facts import PodFact
from retuned.control.live_proofs import concluded
from retuned.control.orders import order_for
from retuned.control.proposal_step import ProposalStep
from retuned.control.sentinels import is_frozen, withdraws
from retuned.stages.gate import LiveProof

CAUSE = "attribution"
"""Reason codes of a rollback begin with it."""
_KEPT = 16
"""Trials in a status, those of the pods that reported last."""
_PHASES = (ProposalPhase.WATCHING, ProposalPhase.PROMOTED)
"""Phases in which no rollout changes how many launches run the swap, and no proof runs."""


def observed(
    resource: SwapProposal, pods: Iterable[PodFact], *, now: datetime
) -> tuple[LiveProofStatus, ...]:
    """Return the newest trial of each pod that reports one, as its pairs show it.

    Harm that rolls a swap back stays, whatever the pod reports later.

    Parameters
    ----------
    resource
        The proposal as stored.
    pods
        Every pod of the target.
    now
        Moment, with a zone.
    """
    status, found = resource.status, {each.uid: each for each in resource.status.attributions}
    for pod in pods:
        known, told = found.get(pod.uid), _told(resource, pod)
        if (known is not None and withdraws(known)) or told is None or status.alarm_rule is None:
            continue
        entry = _entry(resource, pod, told, rule=status.alarm_rule, now=now)
        if known is None or not _is_same(entry, known):
            found.pop(pod.uid, None)
            found[pod.uid] = entry
    return tuple(found.values())[-_KEPT:]


def asked(case: ProposalStep, *, rule: LiveProof) -> ProposalStep:
    """Let pods try a swap that was kept off, or not while tuning is frozen.

    Parameters
    ----------
    case
        The step; without its freezes nothing changes.
    rule
        The policy's rule now.
    """
    if case.facts.freezes is None:
        return case
    may = case.phase in _PHASES and rule.switches and not is_frozen(case)
    return case.having(alarm_rule=rule if may else None)


def alarm_orders(uid: str, proposals: Sequence[SwapProposal]) -> tuple[AlarmOrder, ...]:
    """Return the swaps that a pod may try off."""
    return tuple(_orders(uid, proposals))[:MAX_ALARMS]


def _orders(uid: str, proposals: Iterable[SwapProposal]) -> Iterator[AlarmOrder]:
    for resource in proposals:
        status = resource.status
        if status.rollout is None or status.alarm_rule is None or status.phase not in _PHASES:
            continue
        told = next((t for t in status.rollout.pods if t.uid == uid), None)
        if told is not None and told.done and told.wants is PodState.SWAP:
            yield AlarmOrder(
                order=order_for(resource, told).id,
                name=f"{resource.metadata.namespace}/{resource.metadata.name}",
                rule=status.alarm_rule,
            )


def _told(resource: SwapProposal, pod: PodFact) -> PodOrder | None:
    """Return the order that a pod has tried off; None if it reports no trial of its order."""
    rollout, said = resource.status.rollout, pod.proof
    if rollout is None or said is None or said.trial is None:
        return None
    told = next((t for t in rollout.pods if t.uid == pod.uid), None)
    return told if told is not None and told.epoch == said.trial_epoch else None


def _entry(
    resource: SwapProposal, pod: PodFact, told: PodOrder, *, rule: LiveProof, now: datetime
) -> LiveProofStatus:
    said, rollout = pod.proof, resource.status.rollout
    assert said is not None, "it reports a trial"
    assert said.trial is not None, "it reports a trial"
    assert rollout is not None, "it has an order"
    entry = LiveProofStatus(
        name=pod.name,
        uid=pod.uid,
        epoch=told.epoch,
        environment=pod.environment or "",
        wave=rollout.wave,
        swapped=max(1, sum(each.done for each in rollout.pods)),
        since=now,
        rule=rule,
    )
    return concluded(entry, said.trial, sentence=said.trial_sentence, now=now)


def _is_same(entry: LiveProofStatus, known: LiveProofStatus) -> bool:
    """Whether a pod reports what it has reported before; a trial is reported for an hour."""
    shown = ("epoch", "verdict", "reason", "sentence", "effect", "low", "high", "pairs")
    return all(getattr(entry, name) == getattr(known, name) for name in shown)
