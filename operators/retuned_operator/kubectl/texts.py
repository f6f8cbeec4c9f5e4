"""How the objects of a cluster look, in tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from retuned.api.proposal import PodState
from retuned.report.live_proof import account_lines
from retuned.report.proposal_text import (
    DECIDED,
    freeze_line,
    meaning,
    origin_fields,
    proposal_body,
    saving_words,
    speedup_words,
    subject_fields,
    waiting_words,
)
from retuned.stages.gate import TuningFreeze, utc_minute
from retuned.text import ago, print_fields, print_table, safe, short_id, stdout
from retuned_operator.kubectl.cluster_session import full_name
from retuned_operator.schema import ProposalPhase, SwapDecision, SwapProposal, write

_ASKS = (ProposalPhase.AWAITING_APPROVAL, ProposalPhase.PAUSED)
_PHASES_SHOWN = 6
_PROOFS_SHOWN = 4


def summary(found: SwapProposal) -> dict[str, Any]:
    """Return the stable JSON of one proposal."""
    status = write(found)["status"]
    return {
        "name": found.metadata.name,
        "namespace": found.metadata.namespace,
        "uid": found.metadata.uid,
        "phase": found.status.phase.value,
        "reason": found.status.reason,
        **proposal_body(found.stage_proposal()),
        "requested_by": found.spec.requested_by,
        "gate": status.get("gate"),
        "window": status.get("window"),
        "sentence": found.status.gate.sentence if found.status.gate else None,
    }


def decision_body(found: SwapDecision) -> dict[str, Any]:
    """Return the stable JSON of one decision."""
    at = found.metadata.creation_timestamp
    spec = found.spec
    return {
        "name": found.metadata.name,
        "decision": spec.decision.value,
        "user": spec.user,
        "groups": list(spec.groups),
        "comment": spec.comment,
        "channel": spec.channel,
        "digest": spec.digest,
        "policy_generation": spec.policy_generation,
        "policy_digest": spec.policy_digest,
        "at": None if at is None else at.isoformat(),
    }


def print_proposals(
    rows: Sequence[SwapProposal],
    *,
    freezes: Sequence[TuningFreeze],
    now: datetime,
    everywhere: bool,
    wide: bool,
) -> None:
    """Print one line a proposal, and the freezes above them."""
    print_freezes(freezes)
    if not rows:
        stdout().print("No open proposals; `kubectl retuned proposals --all` shows ended ones.")
        return
    header = ("name", "phase", "kernel", "speedup", "saves", "risk", "expires")
    more = ("target", "gpu", "artifact", "asked by") if wide else ()
    first = ("namespace",) if everywhere else ()
    print_table(
        (*first, *header, *more, "waits for"),
        [
            (
                *((found.metadata.namespace,) if everywhere else ()),
                *_row(found, now=now),
                *(_wide(found) if wide else ()),
                _waits(found),
            )
            for found in rows
        ],
    )


def print_freezes(freezes: Sequence[TuningFreeze]) -> None:
    """Print the freezes in force."""
    for freeze in freezes:
        stdout().print(safe(freeze_line(freeze), limit=4000), soft_wrap=True)


def subject(found: SwapProposal, *, now: datetime) -> list[tuple[str, str]]:
    """Return what a person needs to see before they say anything."""
    proposal, gate = found.stage_proposal(), found.status.gate
    judged = gate.sentence or f"{gate.state}: {gate.reason}" if gate else "not judged yet"
    return [
        ("proposal", full_name(found)),
        ("phase", _phase(found)),
        *subject_fields(proposal),
        ("measured on", found.spec.gpu_model),
        *(
            (name, said)
            for name, said in origin_fields(proposal, now=now)
            if name != "expires" or found.status.phase.is_before_swap
        ),
        ("gate", judged),
    ]


def print_proposal(
    found: SwapProposal, decisions: Sequence[SwapDecision], *, plan: Sequence[str], now: datetime
) -> None:
    """Print everything a person needs to decide, and how far it is.

    `plan` describes the live proof.
    """
    said = [(str(each.spec.decision), _said(each, now=now)) for each in decisions]
    planned = [("live proof" if at == 0 else "", words) for at, words in enumerate(plan)]
    print_fields([*subject(found, now=now), *planned, *_progress(found), *said])
    _print_pods(found)
    if found.status.phase in _ASKS:
        artifact = found.spec.artifact.digest
        command = f"kubectl retuned approve {full_name(found)} --digest {artifact}"
        stdout().print(safe(command, limit=600), soft_wrap=True)


def print_decision(found: SwapDecision, about: SwapProposal, *, already: bool) -> None:
    """Print a decision and the proposal that it is about."""
    out = stdout()
    spec = found.spec
    before = " before" if already else ""
    out.print(safe(f"{DECIDED[spec.decision]}{before} by {spec.user}: {full_name(about)}"))
    out.print(f"  artifact {spec.digest}", soft_wrap=True)
    out.print(safe(f"  means: {meaning(about.stage_proposal())}", limit=600), soft_wrap=True)
    out.print(
        safe(f"`kubectl retuned show {full_name(about)}` shows its status.", limit=600),
        soft_wrap=True,
    )


def _row(found: SwapProposal, *, now: datetime) -> tuple[str, ...]:
    proposal = found.stage_proposal()
    open_ = found.status.phase.is_before_swap
    return (
        found.metadata.name,
        found.status.phase.value,
        proposal.definition,
        speedup_words(proposal),
        saving_words(proposal),
        proposal.risk.value,
        ago(proposal.expires_at, now=now) if open_ else "",
    )


def _wide(found: SwapProposal) -> tuple[str, ...]:
    spec = found.spec
    return (spec.target_ref.name, spec.gpu_model, short_id(spec.artifact.digest), spec.requested_by)


def _waits(found: SwapProposal) -> str:
    gate, status = found.status.gate, found.status
    if status.phase in _ASKS and gate is not None:
        return waiting_words(
            gate.missing, missing_from=gate.missing_from, state=gate.state, reason=gate.reason
        )
    if status.phase.is_before_swap:
        return status.reason or "the operator"
    if not (status.phase.is_under_way or status.phase.is_going_back):
        return ""
    pods = status.rollout.pods if status.rollout is not None else ()
    done = f"{sum(pod.done for pod in pods)} of {len(pods)} pods done" if pods else ""
    return ", ".join(part for part in (status.reason, done) if part)


def _phase(found: SwapProposal) -> str:
    status = found.status
    why = ": ".join(part for part in (status.reason, status.detail) if part)
    return f"{status.phase.value} ({why})" if why else status.phase.value


def _progress(found: SwapProposal) -> list[tuple[str, str]]:
    status = found.status
    rows = []
    if status.window is not None:
        change = status.window.next_change
        until = f" until {utc_minute(change)}" if change else ""
        rows.append(("window", ("open" if status.window.open else "closed") + until))
    if status.rollout is not None:
        told = [pod for pod in status.rollout.pods if pod.wants is PodState.SWAP]
        done = sum(pod.done for pod in told)
        rows.append(("rollout", f"wave {status.rollout.wave}, {done} of {len(told)} pods have it"))
        looks = status.analysis
        words = f"{looks.passed} passed, {looks.failed} failed, {looks.inconclusive} without data"
        rows.append(("looks", words))
    if status.replicas is not None:
        rows.append(("canary replicas", status.replicas.sentence or "none has been made yet"))
    for each in status.live_proofs[-_PROOFS_SHOWN:]:
        rows.append(("live traffic", f"{each.name}: {each.sentence or each.phase or 'asked'}"))
        if each.account is not None:
            rows.extend(account_lines(each.account.account()))
    for each in status.sentinels:
        waits = "waits for the end of its day" if each.phase else "is not asked for"
        rows.append(("sentinel", f"{each.name}: {each.sentence or waits}"))
    for each in status.attributions:
        rows.append(("alarm", f"{each.name}: {each.sentence}"))
    newest = status.history[-_PHASES_SHOWN:]
    if newest:
        steps = [f"{step.to} {step.at.isoformat(sep=' ', timespec='minutes')}" for step in newest]
        rows.append(("way", ", ".join(steps)))
    return rows


def _print_pods(found: SwapProposal) -> None:
    rollout = found.status.rollout
    if rollout is None or not rollout.pods:
        return
    stdout().print("")
    print_table(
        ("pod", "told", "epoch", "done", "since", "waits for"),
        [
            (
                pod.name,
                pod.wants.value,
                str(pod.epoch),
                "yes" if pod.done else "no",
                pod.since.isoformat(sep=" ", timespec="seconds"),
                "" if pod.done else pod.held,
            )
            for pod in rollout.pods
        ],
    )


def _said(found: SwapDecision, *, now: datetime) -> str:
    at = found.metadata.creation_timestamp
    when = f", {ago(at, now=now)}" if at else ""
    comment = f": {found.spec.comment}" if found.spec.comment.strip() else ""
    return f"by {found.spec.user}{when}{comment}"
