"""Sentinels by node agents: which pods measure a promoted swap, and what a day means. Pure.

In each environment one pod measures: the one that proved the swap last, because it has the fit of
its steps. A pod that is gone is replaced by another one that has proved it; without such a pod
nothing is measured. Only harm follows from a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from retuned.api.agent import MAX_PROOFS, ProofOrder
from retuned.api.proposal import LiveProofStatus, PodState, ProposalPhase, SwapProposal
from retuned.control.facts import MeasuredFact, PodFact
from retuned.control.live_proofs import concluded, order_of, proof_orders
from retuned.control.proposal_step import ProposalStep
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.watch import Consequence
from retuned.stages.watch.proof import Phase, ProofReason, ProofReport, Verdict, keeps

CAUSE = "sentinel"
"""Reason codes of a rollback begin with it."""
_HARM = ProofReport(verdict=Verdict.HARMS, reason=ProofReason.SLOWER)
"""A day of harm; what follows does not depend on its reason."""
_ASKED = str(Phase.SENTINEL)


def observed(
    resource: SwapProposal, pods: Iterable[PodFact], *, now: datetime
) -> tuple[LiveProofStatus, ...]:
    """Return the sentinels of a proposal with the newest day that the pods report.

    A day of harm that rolls a swap back stays, whatever the pod reports later.

    Parameters
    ----------
    resource
        The proposal as stored.
    pods
        Every pod of the target.
    now
        Moment, with a zone.
    """
    facts = {pod.uid: pod for pod in pods}
    return tuple(
        each if withdraws(each) else _observed(each, facts.get(each.uid), now=now)
        for each in resource.status.sentinels
    )


def measured(
    sentinels: Iterable[LiveProofStatus], *, rule: LiveProof | None, cause: str = CAUSE
) -> MeasuredFact:
    """Return what measurements of a swap that was kept mean: only harm withdraws it.

    Parameters
    ----------
    sentinels
        As `observed` returns them, or trials of alarms.
    rule
        The policy's rule now; None while it cannot be read.
    cause
        What asked for them; reason codes of a rollback begin with it.
    """
    harm = next((each for each in sentinels if each.verdict == Verdict.HARMS), None)
    if harm is None:
        return MeasuredFact()
    if rule is None:
        return MeasuredFact(consequence=Consequence.WAIT)
    if rule.mode is LiveProofMode.OFF or keeps(_HARM, rule, kept=True):
        return MeasuredFact()
    return MeasuredFact(
        consequence=Consequence.REVERT,
        reason=f"{cause}-{harm.reason}",
        detail=f"{harm.name}: {harm.sentence}",
    )


def asked(case: ProposalStep, *, rule: LiveProof) -> ProposalStep:
    """Ask one pod of each environment to measure a promoted swap, or none while tuning is frozen.

    Parameters
    ----------
    case
        The step; its freezes are known or the sentinels stay as they are.
    rule
        The policy's rule now.
    """
    if case.phase is not ProposalPhase.PROMOTED or case.facts.freezes is None:
        return case
    wanted = rule.switches and rule.sentinel > 0.0 and not is_frozen(case)
    known = {each.environment: each for each in case.status.sentinels}
    able = _able(case)
    found = []
    for environment in dict.fromkeys((*known, *able)):
        one, pods = known.get(environment), able.get(environment, ())
        stays = one is not None and any(each.uid == one.uid for each in pods)
        if one is None or (not stays and pods):
            one = _begun(pods[-1], rule=rule, now=case.now)
            stays = True
        phase = _ASKED if wanted and stays else ""
        found.append(one.model_copy(update={"phase": phase, "rule": rule}))
    return case.having(sentinels=tuple(found)[-16:])


def is_frozen(case: ProposalStep) -> bool:
    """Whether a freeze covers the swap, or may: one that cannot be read, or without a target."""
    target, freezes = case.facts.target, case.facts.freezes
    return (
        target is None
        or freezes is None
        or any(
            (each.until is None or case.now < each.until)
            and each.scope.covers(target=target.full_name, kernel=case.resource.spec.kernel)
            for each in freezes
        )
    )


def all_orders(uid: str, proposals: Sequence[SwapProposal]) -> tuple[ProofOrder, ...]:
    """Return the orders for a pod to prove and to measure; proofs go first."""
    found = (*proof_orders(uid, proposals), *sentinel_orders(uid, proposals))
    return found[:MAX_PROOFS]


def sentinel_orders(uid: str, proposals: Iterable[SwapProposal]) -> Iterator[ProofOrder]:
    """Yield the swaps that a pod is to measure for their sentinel."""
    for resource in proposals:
        rollout = resource.status.rollout
        if rollout is None or resource.status.phase is not ProposalPhase.PROMOTED:
            continue
        told = next((t for t in rollout.pods if t.uid == uid and t.wants is PodState.SWAP), None)
        for each in resource.status.sentinels:
            if told is None or (each.uid, each.epoch) != (uid, told.epoch) or each.phase != _ASKED:
                continue
            yield order_of(resource, told, each.rule, sentinel=True)


def withdraws(entry: LiveProofStatus) -> bool:
    """Whether a measurement of a swap that was kept rolls it back."""
    return entry.verdict == Verdict.HARMS and entry.rule.mode is LiveProofMode.REQUIRED


def _observed(entry: LiveProofStatus, pod: PodFact | None, *, now: datetime) -> LiveProofStatus:
    said = pod.proof if pod is not None else None
    if said is None or said.day is None or said.day_epoch != entry.epoch:
        return entry
    after = concluded(entry, said.day, sentence=said.day_sentence, now=now)
    after = after.model_copy(update={"phase": entry.phase})
    # the same day is reported until the next one ends
    same = after.model_copy(update={"at": entry.at, "evidence": entry.evidence}) == entry
    return entry if same else after.model_copy(update={"evidence": None})


def _able(case: ProposalStep) -> dict[str, Sequence[LiveProofStatus]]:
    """Return the proofs of each environment whose pods still run the swap, oldest first."""
    rollout, present = case.status.rollout, {pod.uid for pod in case.facts.pods}
    epochs = (
        {t.uid: t.epoch for t in rollout.pods if t.done and t.wants is PodState.SWAP}
        if rollout is not None
        else {}
    )
    found: dict[str, list[LiveProofStatus]] = {}
    for each in case.status.live_proofs:
        if each.verdict and each.uid in present and epochs.get(each.uid) == each.epoch:
            found.setdefault(each.environment, []).append(each)
    return dict(found)


def _begun(proved: LiveProofStatus, *, rule: LiveProof, now: datetime) -> LiveProofStatus:
    """Return a sentinel without a day, in the pod of a proof."""
    return LiveProofStatus(
        name=proved.name,
        uid=proved.uid,
        epoch=proved.epoch,
        environment=proved.environment,
        wave=proved.wave,
        swapped=proved.swapped,
        since=now,
        rule=rule,
    )
