"""What the pages say: from the facts of a case to sentences, numbers and figures. Pure.

`retuned.report.proposal_text` describes a proposal here and in a terminal.

What a swap is worth, in words: kernel time, GPU-hours and money, each with its bounds. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from retuned import text
from retuned.report.figures import Figure
from retuned.report.live_proof import prediction_of, sentence_of
from retuned.report.proof_figures import account_figure, proof_figures
from retuned.report.proposal_text import (
    DECIDED,
    origin_fields,
    saving_words,
    speedup_words,
    subject_fields,
    waiting_words,
)
from retuned.review.differences import Difference, difference
from retuned.review.figures import roof_figure, shapes_figure
from retuned.review.records import Act, CostBasis, Line, ProposalDetails, ReviewPhase, Row
from retuned.review.summary import GateView, gates_of, sure_of
from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.stages.proposal import Proposal
from retuned.stages.watch import EndToEndReport, Hours, WatchSample
from retuned.stages.watch.proof import Forecast, ProofState
from retuned.text import ago, short_id

HOURS_PER_MONTH = 730.0


def saving_of(proposal: Proposal) -> Hours:
    """Return the share of kernel time that a swap saves, by each bound of its speedup.

    Examples
    --------
    A kernel with half of the time, twice as fast, saves a quarter.
    """
    speedup, share = proposal.speedup, proposal.share
    low, middle, high = (
        share * (1.0 - 1.0 / max(each, 1.0))
        for each in (speedup.lower, speedup.point, speedup.upper)
    )
    return Hours(lower=low, point=middle, upper=high)


def monthly_hours(proposal: Proposal, fleet: CostBasis) -> Hours | None:
    """Return GPU-hours a month that a swap saves; None if the GPU's busy share is unknown."""
    if fleet.busy_ratio is None:
        return None
    whole = fleet.gpus * HOURS_PER_MONTH * min(max(fleet.busy_ratio, 0.0), 1.0)
    share = saving_of(proposal)
    return Hours(lower=whole * share.lower, point=whole * share.point, upper=whole * share.upper)


def lead_of(proposal: Proposal, fleet: CostBasis) -> str:
    """Return the sentence under the headline."""
    hours = monthly_hours(proposal, fleet)
    saved = f"Saves at least {proposal.expected_saving:.2%} of kernel time"
    touches = f"it touches {proposal.share:.1%} of it, for {proposal.guard}"
    if hours is None:
        return f"{saved}; {touches}."
    return f"{saved}, about {text.significant(hours.lower)} GPU-hours a month; {touches}."


def worth_of(
    proposal: Proposal, fleet: CostBasis, *, forecast: Forecast | None = None
) -> Iterator[tuple[str, str]]:
    """Yield what it saves, what a step gains, and how that was reckoned."""
    share, hours = saving_of(proposal), monthly_hours(proposal, fleet)
    yield "kernel time", f"{share.point:.2%} less ({share.lower:.2%} to {share.upper:.2%})"
    yield "predicted", prediction_of(forecast)
    if hours is None:
        yield "GPU-hours", "unknown: no profile shows how busy the GPU is"
        return
    said = " to ".join(text.significant(each) for each in (hours.lower, hours.upper))
    yield "GPU-hours", f"{text.significant(hours.point)} a month ({said})"
    price = fleet.usd_per_gpu_hour
    if price is not None:
        low, high = hours.lower * price, hours.upper * price
        yield (
            "money",
            f"${hours.point * price:,.0f} a month (${low:,.0f} to ${high:,.0f}) at "
            f"${price:g} an hour",
        )
    busy = fleet.busy_ratio or 0.0
    yield (
        "reckoned with",
        f"{text.plural(fleet.gpus, 'GPU')}, kernels running {busy:.1%} of the time, "
        f"{HOURS_PER_MONTH:g} hours a month",
    )


def _plan(case: ProposalDetails) -> Iterator[tuple[str, str]]:
    """Yield what a live proof would do; nothing once the swap has begun."""
    if case.row.standing is ReviewPhase.OPEN and case.plan:
        yield "live proof", " ".join(case.plan)


_SETTLED = {
    ReviewPhase.IN_PLACE: "good",
    ReviewPhase.GOING_BACK: "bad",
    ReviewPhase.ENDED: "quiet",
}
_ASKS = {
    Act.APPROVE: ("Approve", "Give one approval for exactly this artifact."),
    Act.REJECT: ("Reject", "One rejection ends the proposal, also after approvals."),
    Act.ABORT: ("Abort", "Stop it in any phase; a swap under way rolls back. Never gated."),
    Act.ROLLBACK: ("Roll back", "Servers return to the kernels that ran before. Never gated."),
    Act.BREAK_GLASS: (
        "Break the glass",
        "Emergency: swap alone, outside the windows. Stays visible in the record.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One line of a list."""

    row: Row
    """The facts."""
    speedup: str
    """With the bound that counts."""
    saving: str
    """Share of kernel time."""
    waits: str
    """The person or event that it waits for."""
    when: str
    """Until when, or since when."""
    tone: str
    """``wait``, ``good``, ``bad`` or ``quiet``; words carry the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordView:
    """One person's word."""

    said: str
    """What."""
    user: str
    """Who."""
    when: str
    """How long ago."""
    comment: str
    """Why."""
    counts: str
    """Whether the gate counts it, and why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActView:
    """Something that can be said now."""

    act: Act
    """What."""
    label: str
    """On the button."""
    means: str
    """What it does."""
    doubts: tuple[str, ...]
    """Why it may not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalView:
    """One proposal's page."""

    case: ProposalDetails
    """The facts."""
    headline: str
    """What and how much."""
    lead: str
    """What it is worth."""
    state: str
    """Where it stands."""
    tone: str
    """As in `RowView`."""
    subject: tuple[tuple[str, str], ...]
    """What it would change, as in a terminal."""
    worth: tuple[tuple[str, str], ...]
    """Hours and money, with their bounds and how they were reckoned."""
    gates: tuple[GateView, ...]
    """Validation gates of the candidate."""
    sure: tuple[tuple[str, str], ...]
    """How sure the numbers are."""
    words: tuple[WordView, ...]
    """What people said."""
    acts: tuple[ActView, ...]
    """What can be said now."""
    changes: Difference | None
    """Sources and parameters; None if the variant's source is not stored here."""
    shapes: Figure | None
    """Speedup at each shape."""
    roof: Figure | None
    """What physics allows."""
    running: tuple[tuple[str, str], ...]
    """What the servers show since the swap."""
    proof: tuple[Figure, ...]
    """Pairs, evidence and account of its live proof, in a cluster of each pod; empty without
    pairs."""
    expired: bool
    """Whether the time to decide is over."""


def row_view(row: Row, *, now: datetime) -> RowView:
    """Return a line of a list."""
    open_ = row.standing is ReviewPhase.OPEN
    moment = row.proposal.expires_at if open_ else row.updated_at or row.proposal.created_at
    return RowView(
        row=row,
        speedup=speedup_words(row.proposal),
        saving=saving_words(row.proposal),
        waits=_waits(row),
        when=f"expires {ago(moment, now=now)}" if open_ else ago(moment, now=now),
        tone=_tone(row),
    )


def proposal_view(case: ProposalDetails, *, now: datetime) -> ProposalView:
    """Return a proposal's page."""
    row, document = case.row, case.document
    proposal = row.proposal
    return ProposalView(
        case=case,
        headline=f"{proposal.definition} on {proposal.target}: {speedup_words(proposal)}",
        lead=lead_of(proposal, case.fleet),
        state=_state(row, now=now),
        tone=_tone(row),
        subject=(*subject_fields(proposal), *origin_fields(proposal, now=now)),
        worth=(*worth_of(proposal, case.fleet, forecast=case.forecast), *_plan(case)),
        gates=tuple(gates_of(document)) if document else (),
        sure=tuple(sure_of(case)),
        words=tuple(_word(each, case, now=now) for each in case.words),
        acts=tuple(_act(act, case) for act in Act if act in case.acts),
        changes=difference(case.incumbent, case.candidate) if case.candidate else None,
        shapes=shapes_figure(document) if document else None,
        roof=roof_figure(document, case.roofs) if document else None,
        running=(
            *_counted(case.sample),
            *_end_to_end(case.end_to_end),
            *_live_proof(case.live_proof),
        ),
        proof=tuple(_proof(case)),
        expired=row.standing is ReviewPhase.OPEN and now >= proposal.expires_at,
    )


def event_words(line: Line) -> str:
    """Say a code of the history in words.

    Examples
    --------
    >>> from datetime import UTC
    >>> at = datetime(2026, 3, 2, tzinfo=UTC)
    >>> event_words(Line(at=at, who="ada", what="decision-breakglass"))
    'decision: breakglass'
    """
    head, dash, rest = line.what.partition("-")
    return f"{head}: {rest}" if dash and head in ("decision", "gate", "drift") else line.what


def _waits(row: Row) -> str:
    if row.asked:
        return "; ".join(row.asked)
    if row.standing not in (ReviewPhase.OPEN, ReviewPhase.AGREED):
        return row.phase
    gate = row.gate
    if gate is None:
        return "not judged yet"
    if row.standing is ReviewPhase.AGREED:
        return "the swap"
    return waiting_words(
        gate.missing, missing_from=gate.missing_from, state=gate.state, reason=gate.reason
    )


def _tone(row: Row) -> str:
    if row.phase.replace("-", "").lower() in ("rolledback", "rollbackfailed", "refused", "invalid"):
        return "bad"
    return _SETTLED.get(row.standing, "wait")


def _state(row: Row, *, now: datetime) -> str:
    if row.standing is ReviewPhase.OPEN and now >= row.proposal.expires_at:
        return "Expired: no decision came in time, and nothing is swapped."
    said = row.gate.sentence if row.gate else "Not judged yet; is the daemon running?"
    if row.standing in (ReviewPhase.OPEN, ReviewPhase.AGREED):
        return said
    return f"{row.phase[:1].upper()}{row.phase[1:]}."


def _word(said: SwapDecision, case: ProposalDetails, *, now: datetime) -> WordView:
    return WordView(
        said=DECIDED[said.decision],
        user=said.user,
        when=ago(said.at, now=now),
        comment=said.comment,
        counts=_counts(said, case),
    )


def _counts(said: SwapDecision, case: ProposalDetails) -> str:
    gate = case.row.gate
    if said.digest != case.row.proposal.artifact:
        return "does not count: other-digest"
    if gate is None or said.decision is not DecisionKind.APPROVE:
        return ""
    why = next((reason for user, reason in gate.ignored if user == said.user), None)
    if why is not None:
        return f"does not count: {why}"
    return "counts" if said.user in gate.received else ""


def _act(act: Act, case: ProposalDetails) -> ActView:
    label, means = _ASKS[act]
    return ActView(act=act, label=label, means=means, doubts=case.doubts.get(act, ()))


def _counted(sample: WatchSample | None) -> Iterator[tuple[str, str]]:
    if sample is None:
        return
    launches = sample.swapped_launches + sample.fallback_launches
    yield (
        "launches",
        f"{text.count(sample.swapped_launches)} of {text.count(launches)} ran the variant, in "
        f"{text.plural(sample.processes - sample.idle_processes, 'process')} of "
        f"{sample.processes}",
    )
    yield (
        "shadow checks",
        f"{text.count(sample.shadow_checks)}, {text.count(sample.shadow_mismatches)} over what "
        f"is allowed, worst {sample.worst_ratio:.2g} of it",
    )
    if sample.errors or sample.tripped:
        yield "trouble", f"{text.count(sample.errors)} errors {sample.tripped}".strip()
    if sample.fraction < 1.0:
        yield "canary", f"{sample.fraction:.0%} of launches"


def _live_proof(state: ProofState | None) -> Iterator[tuple[str, str]]:
    if state is None:
        return
    if state.report is None:
        yield "live traffic", f"{state.phase}, {state.planned} pairs so far"
    else:
        yield "live traffic", sentence_of(state.report)


def _proof(case: ProposalDetails) -> Iterator[Figure]:
    if case.live_proof is not None:
        yield from proof_figures(case.live_proof)
    for pod, state in case.proofs:
        yield from proof_figures(state, of=pod)
    shown = {pod for pod, state in case.proofs if state.report and state.report.account}
    accounts = (each for each in case.accounts if each[0] not in shown)
    pictures = (account_figure(account, of=pod) for pod, account in accounts)
    yield from (each for each in pictures if each is not None)


def _end_to_end(report: EndToEndReport | None) -> Iterator[tuple[str, str]]:
    if report is None:
        return
    yield "whole server", f"{report.outcome}: {report.reason}  {report.detail}".rstrip()
    for name, pair in (
        ("tokens a second", report.tokens_per_s),
        ("first token, ms", report.ttft_ms),
        ("further token, ms", report.tpot_ms),
    ):
        if pair is not None:
            yield name, f"{pair[0]:.4g} without, {pair[1]:.4g} with the swap"


def key_name(key: str) -> str:
    """Return a key short enough to show."""
    return short_id(key) if "/" not in key else key
