"""Proposal texts and JSON, the same on one machine and in a cluster.

Freeze texts: scope and end.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from retuned.stages.gate import DecisionKind, FreezeScope, TuningFreeze, utc_minute
from retuned.stages.proposal import Proposal
from retuned.text import ago

DECIDED = {
    DecisionKind.APPROVE: "Approved",
    DecisionKind.REJECT: "Rejected",
    DecisionKind.ABORT: "Aborted",
    DecisionKind.BREAK_GLASS: "Glass broken",
}
"""What a decision is called once it is given."""


def proposal_body(proposal: Proposal) -> dict[str, Any]:
    """Return the stable JSON of what a proposal is about."""
    return {
        "target": proposal.target,
        "definition": proposal.definition,
        "artifact": proposal.artifact,
        "guard": str(proposal.guard),
        "speedup": proposal.speedup.model_dump(mode="json"),
        "share": proposal.share,
        "expected_saving": proposal.expected_saving,
        "risk": proposal.risk.value,
        "trust": proposal.trust.value,
        "created_at": proposal.created_at.isoformat(),
        "expires_at": proposal.expires_at.isoformat(),
    }


def subject_fields(proposal: Proposal) -> list[tuple[str, str]]:
    """Return what it would change, how much it gains and how sure that is."""
    speedup = proposal.speedup
    return [
        ("kernel", f"{proposal.definition} on {proposal.target}"),
        ("artifact", proposal.artifact),
        ("replaces", proposal.baseline),
        ("shapes", str(proposal.guard)),
        (
            "speedup",
            f"{speedup.point:.2f}x ({speedup.lower:.2f} to {speedup.upper:.2f}, each bound at "
            f"{speedup.confidence:.0%})",
        ),
        (
            "saves",
            f"{proposal.expected_saving:.2%} of kernel time; it touches {proposal.share:.1%} of it",
        ),
        ("risk", "; ".join((proposal.risk.value, *proposal.risk_reasons))),
        ("source", "generated" if proposal.trust.value == "L" else "audited, other parameters"),
        ("evidence", proposal.evidence or "none"),
    ]


def origin_fields(proposal: Proposal, *, now: datetime) -> list[tuple[str, str]]:
    """Return who asked for it, and when the time to decide ends."""
    return [
        ("asked by", f"{proposal.requested_by}, {ago(proposal.created_at, now=now)}"),
        ("expires", ago(proposal.expires_at, now=now)),
    ]


def speedup_words(proposal: Proposal) -> str:
    """Return the speedup and the bound that counts, short enough for a table."""
    return f"{proposal.speedup.point:.2f}x (>= {proposal.speedup.lower:.2f})"


def saving_words(proposal: Proposal) -> str:
    """Return the share of kernel time that is saved, for a table."""
    return f"{proposal.expected_saving:.1%}"


def meaning(proposal: Proposal) -> str:
    """Say in one line what a word on it is about."""
    return (
        f"{proposal.definition} on {proposal.target} for {proposal.guard}, "
        f"{speedup_words(proposal)}"
    )


def waiting_words(missing: int, *, missing_from: tuple[str, ...], state: str, reason: str) -> str:
    """Return the persons, or the state, that a proposal waits for."""
    if missing:
        return f"{missing} more: {' or '.join(missing_from) or 'anyone'}"
    return f"{state}: {reason}"


def scope_words(scope: FreezeScope) -> str:
    """Return the scope of a freeze in words.

    Examples
    --------
    >>> scope_words(FreezeScope())
    'for everything'
    >>> scope_words(FreezeScope(targets=("prod-*",), kernels=("linear*", "rmsnorm")))
    "for targets 'prod-*', kernels 'linear*' 'rmsnorm'"
    """
    parts = [
        f"{name} {' '.join(repr(glob) for glob in globs)}"
        for name, globs in (("targets", scope.targets), ("kernels", scope.kernels))
        if globs
    ]
    return f"for {', '.join(parts)}" if parts else "for everything"


def end_words(freeze: TuningFreeze) -> str:
    """Return when a freeze ends; one without an end lasts until it is thawed."""
    if freeze.until is None:
        return "until thawed"
    return f"until {utc_minute(freeze.until)}"


def freeze_line(freeze: TuningFreeze) -> str:
    """Return an active freeze as one line."""
    reason = f": {freeze.reason}" if freeze.reason.strip() else ""
    words = f"{scope_words(freeze.scope)}, {end_words(freeze)}{reason}"
    return f"FROZEN by {freeze.user} {words} ({freeze.id})"
