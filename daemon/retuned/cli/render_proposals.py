"""How proposals, decisions and the history look, in tables and as JSON.

Who was asked for the candidates of an experiment, as people and programs see it.

Gate G7 of a swap, as people and programs see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from retuned.cli.evidence import gates_line
from retuned.cli.output import safe, stdout
from retuned.ports import Event, Store, Stored
from retuned.report.live_proof import (
    compact_lines,
    prediction_of,
    sentence_of,
    sentinel_sentence,
)
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
from retuned.stages.experiment import Turn
from retuned.stages.gate import (
    GateDecision,
    SwapDecision,
    TuningFreeze,
    explain,
)
from retuned.stages.proposal import Proposal
from retuned.stages.watch import EndToEndReport
from retuned.stages.watch.proof import Forecast, ProofState
from retuned.standalone.decisions import ASKS, OPEN, PendingRequest
from retuned.standalone.evidence import Read
from retuned.text import ago, print_fields, print_table, short_id

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
                ago(proposal.expires_at, now=now) if stored.phase in OPEN else "",
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
    plan: Sequence[str],
    now: datetime,
) -> None:
    """Print everything a person needs to decide; `plan` says what a live proof will do."""
    rows = [
        ("proposal", stored.id),
        ("phase", stored.phase),
        *subject_fields(proposal),
        ("gates", _gates(evidence)),
        *([("beside it", beside)] if beside else []),
        *origin_fields(proposal, now=now),
        ("gate", explain(gate) if gate else "not judged yet; is the daemon running?"),
        *(("live proof" if at == 0 else "", words) for at, words in enumerate(plan)),
        *((f"{d.decision}", f"by {d.user} {d.comment}") for d in decisions),
        *([("waits for", _asked(asked))] if asked else []),
    ]
    print_fields(rows)
    if stored.phase in ASKS:
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
    out.print(f"{then[:1].upper()}{then[1:]}; `retuned show` shows its status.", soft_wrap=True)


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
    """Name the passed gates, and whether the evidence is verified."""
    said = gates_line(evidence.document) if evidence.document is not None else "not known"
    if evidence.doubt is None:
        return f"{said}; the evidence is signed and whole"
    return f"{said}; NOT VERIFIED, it will not be swapped: {evidence.doubt.detail}"


def _asked(asked: Sequence[PendingRequest]) -> str:
    return "; ".join(each.sentence() for each in asked)


def _waits(stored: Stored, gate: GateDecision | None) -> str:
    if stored.phase not in ASKS:
        return ""
    if gate is None:
        return "the daemon"
    return waiting_words(
        gate.missing, missing_from=gate.missing_from, state=gate.state, reason=gate.reason
    )


def turns_of(store: Store, experiment: str) -> tuple[Turn, ...]:
    """Return the turns of an experiment, oldest first; empty where none were kept or read."""
    stored = store.get("turns", experiment)
    if stored is None:
        return ()
    try:
        return tuple(Turn.model_validate(each) for each in stored.body["turns"])
    except (ValidationError, KeyError, TypeError):
        return ()


def print_turns(turns: Sequence[Turn]) -> None:
    """Print one line a turn: who was asked, what came of it, and why it was its turn."""
    if not turns:
        return
    print_table(
        ("turn", "asked", "came to", "right", "gain", "took", "because"),
        [
            (
                str(turn.number),
                turn.generator,
                turn.outcome.value,
                f"{turn.correct}/{turn.tried}",
                f"{turn.gain_ratio:.3f}x",
                f"{turn.seconds:.1f} s",
                f"{turn.because} {turn.detail}".strip(),
            )
            for turn in turns
        ],
    )


_MEASURING = "measuring"


def end_to_end_of(store: Store, proposal: str) -> Stored | None:
    """Return what was measured of a proposal's swap on the whole server; None if nothing was."""
    return store.get("end-to-end", proposal)


def end_to_end_body(stored: Stored | None) -> dict[str, Any] | None:
    """Return the stable JSON: outcome, reason and numbers, and the digest of the evidence."""
    if stored is None:
        return None
    body = {
        "outcome": stored.phase,
        "predicted": stored.body.get("predicted"),
        "passes": len(stored.body.get("blocks", ())),
        "evidence": stored.body.get("evidence"),
    }
    return body | dict(stored.body.get("report") or {})


def print_end_to_end(stored: Stored | None) -> None:
    """Print what was measured; nothing where nothing was."""
    if stored is None:
        return
    if stored.phase == _MEASURING:
        passes = len(stored.body.get("blocks", ()))
        print_fields([("end to end", f"being measured, {passes} passes so far")])
        return
    try:
        report = EndToEndReport.model_validate(stored.body.get("report"))
    except ValidationError:
        print_fields([("end to end", "its record cannot be read")])
        return
    rows = [("end to end", f"{report.outcome}: {report.reason}  {report.detail}".rstrip())]
    numbers = _numbers(report)
    rows += [("", numbers)] if numbers else []
    print_fields([*rows, ("", f"evidence {stored.body.get('evidence')}")])


def live_proof_body(stored: Stored | None) -> dict[str, Any] | None:
    """Return the stable JSON: state, pairs so far, evidence, and the report with a verdict."""
    if stored is None:
        return None
    try:
        pairs = ProofState.model_validate(stored.body.get("state")).planned
    except ValidationError:
        pairs = None
    body = {"state": stored.phase, "pairs": pairs, "evidence": stored.body.get("evidence")}
    return body | {"report": stored.body.get("report")}


def prediction_body(forecast: Forecast | None) -> dict[str, Any]:
    """Return the stable JSON of the prediction before a proof."""
    body = {} if forecast is None else forecast.model_dump(mode="json")
    return body | {"sentence": prediction_of(forecast)}


def print_live_proof(stored: Stored | None, *, forecast: Forecast | None) -> None:
    """Print what was predicted for live traffic, and its verdict where it was measured."""
    print_fields([("predicted", prediction_of(forecast))])
    if stored is None:
        return
    try:
        state = ProofState.model_validate(stored.body.get("state"))
    except ValidationError:
        print_fields([("live proof", "its record cannot be read")])
        return
    if state.report is None:
        rows = [("live proof", f"{state.phase}, {state.planned} pairs so far")]
    else:
        rows = [("live proof", sentence_of(state.report))]
    if stored.body.get("evidence"):
        rows.append(("", f"evidence {stored.body['evidence']}"))
    print_fields(rows)
    for name, line in compact_lines(state):
        stdout().print(safe(f"  {name:<10}{line}"), soft_wrap=True, highlight=False, markup=False)


def print_sentinel(state: ProofState | None) -> None:
    """Print what the pairs of a promoted swap show; nothing without any."""
    if state is not None:
        print_fields([("sentinel", sentinel_sentence(state))])


def _numbers(report: EndToEndReport) -> str:
    pairs = (
        ("tokens/s", report.tokens_per_s),
        ("first token ms", report.ttft_ms),
        ("further token ms", report.tpot_ms),
    )
    parts = [f"{name} {off:.4g} off, {on:.4g} on" for name, (off, on) in _given(pairs)]
    if report.divergence is not None:
        parts.append(f"{report.divergence:.2%} of tokens differ")
    return "; ".join(parts)


def _given(
    pairs: tuple[tuple[str, tuple[float, float] | None], ...],
) -> list[tuple[str, tuple[float, float]]]:
    return [(name, pair) for name, pair in pairs if pair is not None]
