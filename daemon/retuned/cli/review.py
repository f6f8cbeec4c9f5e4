"""The commands of reviewers: proposals, show, history; approve, reject, abort, rollback.

They work beside a running daemon or without one. A decision is a separate record, written once and
bound to the artifact that was shown; the daemon acts on it. Rollback and abort need no approval.

The module also prints requests for rollbacks and aborts in a terminal, once each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.cli import render_proposals
from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.render_proposals import (
    end_to_end_body,
    end_to_end_of,
    live_proof_body,
    prediction_body,
    print_end_to_end,
    print_live_proof,
    print_sentinel,
    print_turns,
    turns_of,
)
from retuned.cli.session import (
    CommentOption,
    ConfigOption,
    ProposalArgument,
    StateOption,
    StateSession,
    desk,
    find,
    newest,
)
from retuned.errors import Refused, UnreadableInput, UsageError
from retuned.ports import Stored
from retuned.report.live_proof import sentinel_sentence
from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.stages.gate.description import plan_words
from retuned.stages.proposal import Proposal
from retuned.standalone import decisions as people
from retuned.standalone.context import RecordKind
from retuned.standalone.decisions import (
    OPEN,
    SWAPPED,
    PendingRequest,
    asked_for,
    gate_of,
    read_proposal,
    warnings,
)
from retuned.standalone.evidence import read
from retuned.standalone.metrics import said_beside
from retuned.standalone.proofs import repeated_proof
from retuned.standalone.proofs.server_pace import forecast_of
from retuned.store.lock import daemon_runs
from retuned.text import short_id


def next_look(folder: Path) -> str:
    """Say when the daemon of a state folder acts on what people said."""
    if daemon_runs(folder):
        return "the daemon does it at its next look"
    return "no daemon runs on this state: it happens when one is started"


def tell(at: StateSession, stored: Stored, asked: PendingRequest, *, new: bool, json: bool) -> None:
    """Say what was asked for, or who had asked for it already, and when it happens."""
    if json:
        emit_json(
            {
                "request": asked.request,
                "what": asked.what,
                "proposal": stored.id,
                "already_asked": not new,
                "asked_by": asked.who,
                "asked_at": asked.at,
                "daemon_runs": daemon_runs(at.folder),
            }
        )
        return
    name = f"{asked.what.capitalize()} of {short_id(stored.id)}"
    said = "asked for" if new else f"already asked by {asked.who} at {asked.at}"
    stdout().print(safe(f"{name} {said}; {next_look(at.folder)}.", limit=1000), soft_wrap=True)


def proposals(
    all: Annotated[bool, typer.Option("--all", help="Ended ones too.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """List proposals and what each waits for."""
    with desk(config, state_dir) as at:
        rows, unreadable = _listed(at, all=all)
        freezes = at.approvals.freezes(now=at.now)
        asked = asked_for(at.store)
    if json:
        emit_json(
            {
                "proposals": [
                    render_proposals.summary(*r, asked=asked.get(r[0].id, ())) for r in rows
                ],
                "freezes": [freeze.model_dump(mode="json") for freeze in freezes],
                "unreadable": [
                    {"id": stored.id, "phase": stored.phase, "message": str(error)}
                    for stored, error in unreadable
                ],
            }
        )
        return
    render_proposals.print_proposals(rows, freezes=freezes, asked=asked, now=at.now)
    for stored, error in unreadable:
        say(safe(f"{error}; it is {stored.phase}, and is left out: nothing is swapped for it"))


def _listed(
    at: StateSession, *, all: bool
) -> tuple[list[render_proposals.Row], list[tuple[Stored, Exception]]]:
    """Return the proposals to list, and those that cannot be understood: one hides no other."""
    rows: list[render_proposals.Row] = []
    unreadable: list[tuple[Stored, Exception]] = []
    for stored in at.store.list("proposal"):
        if not all and stored.phase not in OPEN + SWAPPED:
            continue
        try:
            rows.append((stored, read_proposal(stored), gate_of(at.store, stored.id)))
        except UnreadableInput as error:
            unreadable.append((stored, error))
    return rows, unreadable


def show(
    id: ProposalArgument,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Show one proposal: numbers, risk, demands of the policy, decisions and history."""
    with desk(config, state_dir) as at:
        stored, proposal = find(at.store, id)
        gate = gate_of(at.store, stored.id)
        decisions = at.approvals.decisions(stored.id)
        orders = [o for o in at.store.list("order") if o.body.get("proposal") == stored.id]
        events = at.store.events(id=stored.id)
        evidence = read(at.store, at.notary, proposal.evidence)
        beside = said_beside(at.store, RecordKind.EXPERIMENT, proposal.experiment)
        turns = turns_of(at.store, proposal.experiment)
        asked = asked_for(at.store).get(stored.id, ())
        measured = end_to_end_of(at.store, stored.id)
        proven = at.store.get("live-proof", stored.id)
        guarded = repeated_proof.day_state(at.store, stored.id)
        forecast = forecast_of(at.store, stored.id)
        plan = plan_words(gate) if stored.phase in OPEN else ()
    if json:
        body = render_proposals.summary(stored, proposal, gate, asked=asked)
        body["end_to_end"] = end_to_end_body(measured)
        body["prediction"] = prediction_body(forecast)
        body["live_proof_plan"] = list(plan)
        body["live_proof"] = live_proof_body(proven)
        body["sentinel"] = sentinel_sentence(guarded) if guarded is not None else None
        body["evidence"] = render_proposals.evidence_summary(proposal, evidence)
        body["beside"] = beside
        body["proposal"] = proposal.model_dump(mode="json")
        body["gate"] = gate.model_dump(mode="json") if gate else None
        body["decisions"] = [d.model_dump(mode="json") for d in decisions]
        body["orders"] = [{"id": o.id, "phase": o.phase} | dict(o.body) for o in orders]
        body["turns"] = [turn.model_dump(mode="json") for turn in turns]
        body["history"] = [render_proposals.line(event) for event in events]
        emit_json(body)
        return
    render_proposals.print_proposal(
        stored,
        proposal,
        gate=gate,
        decisions=decisions,
        evidence=evidence,
        beside=beside,
        asked=asked,
        plan=plan,
        now=at.now,
    )
    print_end_to_end(measured)
    print_live_proof(proven, forecast=forecast)
    print_sentinel(guarded)
    print_turns(turns)
    render_proposals.print_events(events)


def approve(
    id: ProposalArgument,
    comment: CommentOption = "",
    digest: Annotated[
        str, typer.Option(help="Refuse unless the artifact is exactly this one.")
    ] = "",
    break_glass: Annotated[
        bool, typer.Option(help="Emergency: alone, outside the windows. Shows in the history.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Approve the swap to the artifact that is shown, under the policy now in force."""
    kind = DecisionKind.BREAK_GLASS if break_glass else DecisionKind.APPROVE
    with desk(config, state_dir) as at:
        stored, proposal = find(at.store, id)
        _same_artifact(proposal, digest)
        decision = people.approve(at.voice(), stored, proposal, kind=kind, comment=comment)
        gate = gate_of(at.store, stored.id)
        found = warnings(proposal, gate, at.identity, comment=comment, kind=kind) if gate else ()
    _report(at, decision, proposal, doubts=found, json=json)


def reject(
    id: ProposalArgument,
    comment: CommentOption = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Reject a proposal; one rejection ends it."""
    with desk(config, state_dir) as at:
        stored, proposal = find(at.store, id)
        decision = people.reject(at.voice(), stored, proposal, comment=comment)
    _report(at, decision, proposal, json=json)


def abort(
    id: ProposalArgument,
    comment: CommentOption = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Stop a proposal in any phase; a swap under way rolls back. Never gated."""
    with desk(config, state_dir) as at:
        stored, proposal = find(at.store, id)
        decision, asked = people.abort(at.voice(), stored, proposal, comment=comment)
    if decision is not None:
        _report(at, decision, proposal, json=json)
    else:
        tell(at, stored, asked, new=False, json=json)


def rollback(
    id: Annotated[str, typer.Argument(help="Id of a proposal, or its beginning.")] = "",
    slot: Annotated[str, typer.Option(help="Kernel, in place of an id: its last swap.")] = "",
    reason: CommentOption = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Roll a swap back. Never gated by windows, freezes or approvals."""
    if bool(id) == bool(slot):
        raise UsageError("name either a proposal or --slot KERNEL")
    with desk(config, state_dir) as at:
        if slot:
            last = newest(
                [
                    s
                    for s in at.store.list("proposal")
                    if s.phase in SWAPPED and s.body.get("definition") == slot
                ]
            )
            if last is None:
                raise _nothing_in(at, slot)
            stored = last
        else:
            stored, _ = find(at.store, id)
        asked, new = people.rollback(at.voice(), stored, reason=reason)
    tell(at, stored, asked, new=new, json=json)


def _nothing_in(at: StateSession, slot: str) -> Refused | UsageError:
    """Say that nothing is swapped into a kernel; one that no proposal names may be a slip."""
    words = f"nothing is swapped into {safe(slot, limit=60)!r}; see `retuned proposals --all`"
    known = {stored.body.get("definition") for stored in at.store.list("proposal")}
    return Refused(words) if slot in known else UsageError(f"no proposal is about it: {words}")


def history(
    id: Annotated[str, typer.Argument(help="Only this proposal.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Newest lines.")] = 50,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Show who did what, oldest first."""
    with desk(config, state_dir) as at:
        about = find(at.store, id)[0].id if id else None
        events = at.store.events(id=about, limit=limit)
    if json:
        emit_json({"history": [render_proposals.line(event) for event in events]})
        return
    render_proposals.print_events(events)


def _same_artifact(proposal: Proposal, digest: str) -> None:
    if digest and digest.removeprefix("sha256:") != proposal.artifact.removeprefix("sha256:"):
        raise Refused(
            f"the artifact is {proposal.artifact}, not {safe(digest, limit=80)}; "
            "look again with `retuned show` before you approve"
        )


def _report(
    at: StateSession,
    decision: SwapDecision,
    proposal: Proposal,
    *,
    json: bool,
    doubts: Sequence[str] = (),
) -> None:
    if json:
        body: dict[str, Any] = {"decision": decision.model_dump(mode="json"), "id": decision.id}
        emit_json(body | {"doubts": list(doubts)})
    else:
        render_proposals.print_decision(decision, proposal, then=next_look(at.folder))
    for doubt in doubts:
        say(f"retuned: may not count: {doubt}")
