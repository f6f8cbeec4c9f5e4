"""How proposals, decisions and the history look, in tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from retuned.cli.evidence_text import gates_line
from retuned.cli.output import safe, stdout
from retuned.local.people import PendingRequest
from retuned.local.proving import Read
from retuned.ports import Event, Stored
from retuned.stages.gate import (
    GateDecision,
    SwapDecision,
    TuningFreeze,
    explain,
)
from retuned.stages.proposal import Proposal
from retuned.terminal.freezes import freeze_line
from retuned.terminal.layout import print_fields, print_table
from retuned.terminal.moments import ago, short_id
from retuned.terminal.proposals import (
    DECIDED,
    meaning,
    origin_fields,
    proposal_body,
    saving_words,
    speedup_words,
    subject_fields,
    waiting_words,
)

Row = tuple[Stored, Proposal, GateDecision | None]


def summary(
    stored: Stored,
    proposal: Proposal,
    gate: GateDecision | None,
    *,
    asked: Sequence[PendingRequest],
) -> dict[str, Any]:
    """Return the stable JSON of one proposal."""
    return {
        "id": stored.id,
        "phase": stored.phase,
        **proposal_body(proposal),
        "gate": None if gate is None else gate.model_dump(mode="json"),
        "sentence": None if gate is None else explain(gate),
        "asked_for": [each.body() for each in asked],
    }


def evidence_summary(proposal: Proposal, evidence: Read) -> dict[str, Any]:
    """Return the stable JSON of what a proposal rests on."""
    document, doubt = evidence.document, evidence.doubt
    return {
        "digest": proposal.evidence,
        "verified": doubt is None,
        "reason": None if doubt is None else str(doubt.fault),
        "gates": {} if document is None else dict(document.gates()),
    }


def line(event: Event) -> dict[str, Any]:
    """Return the stable JSON of one line of the trail."""
    return {
        "at": event.at.isoformat(),
        "kind": event.kind,
        "id": event.id,
        "what": event.what,
        "who": event.who,
        "detail": dict(event.detail),
    }


def print_proposals(
    rows: Sequence[Row],
    *,
    freezes: Sequence[TuningFreeze],
    asked: Mapping[str, Sequence[PendingRequest]],
    now: datetime,
) -> None:
    """Print one line a proposal, and the freezes above them."""
    out = stdout()
    for freeze in freezes:
        out.print(safe(freeze_line(freeze), limit=4000), soft_wrap=True)
    if not rows:
        out.print("No open proposals; `retuned proposals --all` shows ended ones.")
        return
    print_table(
        ("id", "phase", "kernel", "speedup", "saves", "risk", "expires", "waits for"),
        [
            (
                short_id(stored.id),
                stored.phase,
                proposal.definition,
                speedup_words(proposal),
                saving_words(proposal),
                proposal.risk.value,
                ago(proposal.expires_at, now=now) if stored.phase == "awaiting" else "",
                _asked(asked.get(stored.id, ())) or _waits(stored, gate),
            )
            for stored, proposal, gate in rows
        ],
    )


def print_proposal(
    stored: Stored,
    proposal: Proposal,
    *,
    gate: GateDecision | None,
    decisions: Sequence[SwapDecision],
    evidence: Read,
    beside: str,
    asked: Sequence[PendingRequest],
    now: datetime,
) -> None:
    """Print everything a person needs to decide."""
    rows = [
        ("proposal", stored.id),
        ("phase", stored.phase),
        *subject_fields(proposal),
        ("gates", _gates(evidence)),
        *([("beside it", beside)] if beside else []),
        *origin_fields(proposal, now=now),
        ("gate", explain(gate) if gate else "not judged yet; is the daemon running?"),
        *((f"{d.decision}", f"by {d.user} {d.comment}") for d in decisions),
        *([("waits for", _asked(asked))] if asked else []),
    ]
    print_fields(rows)
    if stored.phase == "awaiting":
        stdout().print(
            f"\nretuned approve {short_id(stored.id)} --digest {proposal.artifact}", soft_wrap=True
        )


def print_decision(decision: SwapDecision, proposal: Proposal, *, then: str) -> None:
    """Print what was decided, about exactly what."""
    out = stdout()
    out.print(
        safe(f"{DECIDED[decision.decision]} by {decision.user}: proposal {short_id(proposal.id)}")
    )
    out.print(f"  artifact {decision.digest}", soft_wrap=True)
    out.print(safe(f"  means: {meaning(proposal)}"), soft_wrap=True)
    out.print(f"{then[:1].upper()}{then[1:]}; `retuned show` says where it stands.", soft_wrap=True)


def print_events(events: Sequence[Event]) -> None:
    """Print the trail."""
    if not events:
        stdout().print("No history.")
        return
    print_table(
        ("at", "who", "what", "about", "detail"),
        [
            (
                event.at.isoformat(sep=" ", timespec="seconds"),
                event.who,
                event.what,
                f"{event.kind} {_name(event.id)}",
                ", ".join(f"{key}={value}" for key, value in event.detail.items() if value),
            )
            for event in events
        ],
    )


def _name(id: str) -> str:
    """Return a digest's beginning; any other name is whole, it may be needed as it is."""
    return short_id(id) if id.startswith("sha256:") else id


def _gates(evidence: Read) -> str:
    """Name the gates that were passed, and whether that is to be believed."""
    said = gates_line(evidence.document) if evidence.document is not None else "not known"
    if evidence.doubt is None:
        return f"{said}; the evidence is signed and whole"
    return f"{said}; NOT VERIFIED, it will not be swapped: {evidence.doubt.detail}"


def _asked(asked: Sequence[PendingRequest]) -> str:
    return "; ".join(each.sentence() for each in asked)


def _waits(stored: Stored, gate: GateDecision | None) -> str:
    if stored.phase != "awaiting":
        return ""
    if gate is None:
        return "the daemon"
    return waiting_words(
        gate.missing, missing_from=gate.missing_from, state=gate.state, reason=gate.reason
    )
