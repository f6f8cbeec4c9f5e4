"""Live proofs of a cluster: from what sidecars report to facts, and the evidence of a verdict.

What a sidecar reports is untrusted. Its verdict counts only as far as the pairs that it reports
lead to the same one; their sums are the node's word.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel

from retuned.api.agent import PodProof
from retuned.api.proposal import LiveProofStatus, SwapProposal, SwapProposalStatus
from retuned.control import PodFact, gate_facts, live_proofs
from retuned.control.facts import PolicyFact, ProofFact
from retuned.ports import Telemetry
from retuned.report.live_proof import sentence_of
from retuned.stages.gate import LiveProof
from retuned.stages.watch.attribution import trial_settings
from retuned.stages.watch.proof import (
    ProofReason,
    ProofReport,
    ProofState,
    Verdict,
    day_settings,
    replay,
    replay_day,
    replayed,
    settings_of,
)
from retuned_operator.agent_api.reports import PodReports, day_of, proof_of, trial_of
from retuned_operator.controllers.ports import Ledger, Reports
from retuned_operator.schema import TuningTarget

_WHY = {
    live_proofs.UNAVAILABLE: "no live proof is possible: ",
    live_proofs.NO_CANARY_REPLICAS: "the operator starts no canary replicas: ",
}
_EARLY = 0.9
"""A proof that time ends has lasted at least this share of its longest duration."""


def rule_of(
    policies: tuple[PolicyFact, ...] | None, target: TuningTarget | None, kernel: str
) -> LiveProof | None:
    """Return the policy's rule for a kernel, the default without one; None while unknown."""
    if policies is None or target is None:
        return None
    chosen, _ = gate_facts.choose(policies, kernel, labels=gate_facts.labels_of(target))
    return chosen.policy.spec.live_proof if chosen is not None else LiveProof()


def proof_fact(
    said: PodReports | None, resource: SwapProposal, *, uid: str, now: datetime
) -> ProofFact | None:
    """Return what a pod reports of live proofs; None if its sidecar does not report them."""
    if said is None or said.proofs is None:
        return None
    post = said.proofs
    posted = _posted(said, resource)
    entry = _open_entry(resource.status.live_proofs, uid)
    report, sentence = None, ""
    day = _day(said, resource)
    sentinel = next((each for each in resource.status.sentinels if each.uid == uid), None)
    shown, words = (None, "") if day is None or sentinel is None else judged_day(day, sentinel)
    trial, rule = _trial(said, resource), resource.status.alarm_rule
    tried, said_of_it = (None, "") if trial is None or rule is None else judged_trial(trial, rule)
    if posted is not None and entry is not None and posted.epoch == entry.epoch:
        report, sentence = judged(posted, entry, now=now)
    return ProofFact(
        unavailable=post.unavailable,
        temporary=post.temporary,
        levels=post.levels,
        epoch=posted.epoch if posted is not None else 0,
        phase=str(posted.phase) if posted is not None else "",
        report=report,
        sentence=sentence,
        day_epoch=day.epoch if day is not None else 0,
        day=shown,
        day_sentence=words,
        trial_epoch=trial.epoch if trial is not None else 0,
        trial=tried,
        trial_sentence=said_of_it,
    )


def judged_day(posted: PodProof, entry: LiveProofStatus) -> tuple[ProofReport | None, str]:
    """Return what follows from a pod's pairs of a day, with its sentence; None before its end."""
    claim = posted.claim
    if claim is None:
        return None, ""
    try:
        report = replay_day(claim, day_settings(entry.rule))
    except ValueError as error:
        return _contradicted(error)
    return report, sentence_of(report)


def judged_trial(posted: PodProof, rule: LiveProof) -> tuple[ProofReport | None, str]:
    """Return what follows from a pod's pairs of a trial, with its sentence; None before its end."""
    claim = posted.claim
    if claim is None:
        return None, ""
    try:
        report = replay(claim, trial_settings(rule))
    except ValueError as error:
        return _contradicted(error)
    return report, sentence_of(report)


def judged(
    posted: PodProof, entry: LiveProofStatus, *, now: datetime
) -> tuple[ProofReport | None, str]:
    """Return the verdict that follows from a pod's pairs, with its sentence; None before one."""
    claim = posted.claim
    if claim is None:
        return None, ""
    try:
        report = replay(claim, settings_of(entry.rule))
        early = now < entry.since + _EARLY * entry.rule.max_duration
        pressed = report.reason is ProofReason.SLO_PRESSURE
        if pressed and not entry.rule.slo.asked:
            raise ValueError("it was asked for no service levels")
        by_time = report.verdict is Verdict.TOO_LITTLE_TRAFFIC and not pressed
        if early and (by_time or report.reason is ProofReason.NOT_SHOWN_IN_TIME):
            raise ValueError("its time was not over")
    except ValueError as error:
        return _contradicted(error)
    return report, sentence_of(report)


def _contradicted(error: ValueError) -> tuple[ProofReport, str]:
    report = ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.CONTRADICTED)
    return report, f"{sentence_of(report)}: {error}"


def unavailable(pods: Sequence[PodFact], rule: LiveProof) -> tuple[str, str]:
    """Return the reason code that holds a swap, and which server cannot prove it; empty without.

    One server that cannot be proven in any way goes before those that canary replicas could prove.
    """
    found: dict[str, list[str]] = {}
    for pod in pods:
        reason = live_proofs.why_not_now(pod, rule) or ""
        code = live_proofs.held(rule, reason)
        if code and pod.ready:
            found.setdefault(code, []).append(f"{pod.name}: {reason}")
    for code in (live_proofs.UNAVAILABLE, live_proofs.NO_CANARY_REPLICAS):
        if code in found:
            return code, _WHY[code] + ", ".join(found[code][:8])
    return "", ""


def with_evidence(
    resource: SwapProposal, status: SwapProposalStatus, *, reports: Reports, ledger: Ledger
) -> SwapProposalStatus:
    """Return a status whose new verdicts have their signed pairs in the store.

    Raises
    ------
    TemporaryError
        If they cannot be kept now: the verdict is written with them or not at all.
    """
    status = _with_harm(resource, status, reports=reports, ledger=ledger)
    new = _new_verdicts(resource.status, status)
    digests = {}
    for each in new:
        posted = _posted(reports.of(each.uid), resource)
        if posted is not None and posted.epoch == each.epoch and posted.claim is not None:
            digests[each.uid] = ledger.keep_proof(_document(resource, each, posted))
    proofs = tuple(
        each.model_copy(update={"evidence": digests[each.uid]})
        if each in new and each.uid in digests
        else each
        for each in status.live_proofs
    )
    return status.model_copy(update={"live_proofs": proofs}) if digests else status


def _with_harm(
    resource: SwapProposal, status: SwapProposalStatus, *, reports: Reports, ledger: Ledger
) -> SwapProposalStatus:
    """Return a status whose days and trials of harm have their signed pairs in the store."""

    def kept(entry: LiveProofStatus, posted: PodProof | None) -> LiveProofStatus:
        harms = entry.verdict == Verdict.HARMS and entry.evidence is None
        if not harms or posted is None or posted.epoch != entry.epoch:
            return entry
        digest = ledger.keep_proof(_document(resource, entry, posted))
        return entry.model_copy(update={"evidence": digest})

    days = tuple(kept(e, _day(reports.of(e.uid), resource)) for e in status.sentinels)
    trials = tuple(kept(e, _trial(reports.of(e.uid), resource)) for e in status.attributions)
    if (days, trials) == (status.sentinels, status.attributions):
        return status
    return status.model_copy(update={"sentinels": days, "attributions": trials})


def count_verdicts(
    telemetry: Telemetry, before: SwapProposalStatus, after: SwapProposalStatus
) -> None:
    """Count the verdicts that a step has written."""
    for each in _new_verdicts(before, after):
        telemetry.count(
            "retuned_live_proof_verdicts_total", verdict=each.verdict, reason=each.reason
        )
    boots, known = after.replicas, before.replicas
    if boots is not None and boots.verdict and (known is None or known.verdict != boots.verdict):
        telemetry.count(
            "retuned_live_proof_verdicts_total", verdict=boots.verdict, reason=boots.reason
        )


def _new_verdicts(
    before: SwapProposalStatus, after: SwapProposalStatus
) -> tuple[LiveProofStatus, ...]:
    known = {(each.uid, each.epoch) for each in before.live_proofs if each.verdict}
    proofs = after.live_proofs
    return tuple(each for each in proofs if each.verdict and (each.uid, each.epoch) not in known)


class _Document(BaseModel):
    """What `proven` reads of `_document`."""

    judged: LiveProofStatus
    reported: PodProof


def _document(resource: SwapProposal, entry: LiveProofStatus, posted: PodProof) -> bytes:
    body = {
        "gate": "live-proof",
        "proposal": posted.proposal,
        "definition": resource.spec.kernel,
        "artifact": resource.spec.artifact.digest,
        "judged": entry.model_dump(mode="json", exclude={"evidence"}),
        "reported": posted.model_dump(mode="json"),
    }
    return json.dumps(body).encode()


@functools.lru_cache(maxsize=16)  # the page reads the same documents at each view
def proven(document: bytes) -> ProofState:
    """Return the proof that the kept pairs of a verdict lead to.

    Parameters
    ----------
    document
        Of `Ledger.keep_proof`; its signature is verified.

    Raises
    ------
    ValueError
        If it is of another version, or its pairs lead to another verdict than was judged.
    """
    kept = _Document.model_validate_json(document)
    if kept.reported.claim is None:
        raise ValueError("it has no pairs")
    state = replayed(kept.reported.claim, settings_of(kept.judged.rule))
    found = state.report
    if found is None or (found.verdict, found.reason) != (kept.judged.verdict, kept.judged.reason):
        raise ValueError(f"it was judged {kept.judged.verdict} ({kept.judged.reason})")
    return state


def _posted(said: PodReports | None, resource: SwapProposal) -> PodProof | None:
    proposal = resource.stage_proposal().id
    return proof_of(said, kernel=resource.spec.kernel, proposal=proposal)


def _day(said: PodReports | None, resource: SwapProposal) -> PodProof | None:
    return day_of(said, kernel=resource.spec.kernel, proposal=resource.stage_proposal().id)


def _trial(said: PodReports | None, resource: SwapProposal) -> PodProof | None:
    return trial_of(said, kernel=resource.spec.kernel, proposal=resource.stage_proposal().id)


def _open_entry(entries: Sequence[LiveProofStatus], uid: str) -> LiveProofStatus | None:
    return next((each for each in entries if each.uid == uid and not each.verdict), None)
