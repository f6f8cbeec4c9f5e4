"""Proposals: whether a validated win is worth a swap, at which risk, for which shapes.

It turns a verdict into a proposal or a refusal, and decides when an expired win is proposed again.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from retuned.contract import Digest, Guard, Name, Record, TrustClass, digest_of
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.verdict import Interval, Status, Verdict


class Risk(StrEnum):
    """How carefully a reviewer must check."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Proposal(Record):
    """A swap that needs a decision; immutable, bound to digests."""

    id: str
    """Digest of target, artifact, baseline and environment, and of the attempt after the first."""
    target: str
    definition: Name
    artifact: Digest
    baseline: Digest
    """Solution it replaces. If this is no longer the incumbent, the proposal is superseded."""
    guard: Guard
    speedup: Interval
    """Weighted by the launches in production."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of GPU time saved, from the lower bound."""
    risk: Risk
    risk_reasons: tuple[str, ...]
    trust: TrustClass
    """Class of the artifact's author."""
    evidence: Digest | None
    experiment: str
    requested_by: str
    """``retuned`` or a person."""
    created_at: AwareDatetime
    expires_at: AwareDatetime
    """After this moment it is expired, never approved."""
    environment: Digest | None = None
    """Where it was measured; the evidence expires with it. None in records of earlier versions."""
    attempt: int = Field(default=1, ge=1)
    """How often this win was proposed, including now; earlier proposals expired undecided."""
    change: Digest | None = None
    """Change of a file that configures the server's kernels, with the file's previous digest.

    None if a kernel is swapped."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out absent fields, so that proposals of kernels keep their serialised form."""
        body: dict[str, Any] = handler(self)
        if self.change is None:
            body.pop("change", None)
        return body


class RefusalReason(StrEnum):
    """Stable codes for a win that is not proposed."""

    NOT_PROMOTED = "not-promoted"
    MISSING_EVIDENCE = "missing-evidence"
    STALE_BASELINE = "stale-baseline"
    ALREADY_LIVE = "already-live"
    QUARANTINED = "quarantined"
    NARROWER_THAN_LIVE = "narrower-than-live"
    NOTHING_COVERED = "nothing-covered"
    NOT_WORTH_IT = "not-worth-it"
    OLD_EVIDENCE = "old-evidence"
    EXPIRED_TOO_OFTEN = "expired-too-often"
    STALE_ENVIRONMENT = "stale-environment"
    EVIDENCE_UNREADABLE = "evidence-unreadable"
    EVIDENCE_ALTERED = "evidence-altered"
    EVIDENCE_KEY_UNKNOWN = "evidence-key-unknown"
    EVIDENCE_KEY_REVOKED = "evidence-key-revoked"
    EVIDENCE_OF_ANOTHER_CANDIDATE = "evidence-of-another-candidate"
    EVIDENCE_OF_ANOTHER_INCUMBENT = "evidence-of-another-incumbent"
    EVIDENCE_OF_ANOTHER_PLAN = "evidence-of-another-plan"
    EVIDENCE_OF_ANOTHER_ENVIRONMENT = "evidence-of-another-environment"
    EVIDENCE_CONTRADICTED = "evidence-contradicted"
    ALREADY_DECIDED = "already-decided"
    NOT_A_ROW = "not-a-row"
    GUARD_BEYOND_STEP = "guard-beyond-step"
    FILE_CHANGED = "file-changed"
    NOTHING_TO_CHANGE = "nothing-to-change"
    FILE_UNUSABLE = "file-unusable"
    SOURCE_DIFFERS = "source-differs"
    NOT_A_TABLE = "not-a-table"
    LIVE_LESSON = "live-lesson"
    """A live proof has shown that such a claim does not hold in this server."""
    HOST_BOUND = "host-bound"
    """The host sets the pace of the server, so it cannot gain, and the policy requires a gain."""


class Refusal(Record):
    """Why a win is not proposed."""

    reason: RefusalReason
    detail: str
    """One sentence with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLimits:
    min_saving: float = 0.002
    """Smallest share of all GPU time that a swap must save to justify a review."""
    suspicious_speedup: float = 2.0
    """A greater speedup over a vendor's library is more likely a mistake than a win."""
    incredible_speedup: float = 20.0
    """As `suspicious_speedup`, over any incumbent."""
    wide_share: float = 0.25
    """Share of GPU time from which the risk is raised."""
    huge_share: float = 0.60
    """Share of GPU time from which a fault would affect the whole server."""


def propose(
    verdict: Verdict,
    *,
    plan: ExperimentPlan,
    share: float,
    target: str,
    now: datetime,
    ttl: timedelta,
    quarantined: Collection[Digest],
    live_baseline: Digest,
    live_guard: Guard | None = None,
    trust: TrustClass = TrustClass.GENERATED,
    evidence: Digest | None = None,
    requested_by: str = "retuned",
    first_swap: bool = False,
    over_library: bool = False,
    limits: ProposalLimits | None = None,
    attempt: int = 1,
) -> Proposal | Refusal:
    """Turn a validated win into a proposal, or refuse it.

    Parameters
    ----------
    share
        Share of GPU time of the plan's shapes now, 0 to 1.
    now, ttl
        Moment, with a zone, and how long the proposal may wait.
    quarantined
        Artifacts that were rolled back recently.
    live_baseline
        Artifact in production now; the win must have been measured against it.
    live_guard
        Shapes that a swapped-in artifact serves now. A swap replaces it completely, so a win at
        fewer shapes would return the others to the original.
    evidence
        Digest of the raw numbers, if the verdict does not name them.
    first_swap
        Whether this kernel was never swapped on this target.
    over_library
        Whether the incumbent is a vendor's library.
    attempt
        One more than how often this win expired undecided.
    """
    limits = limits or ProposalLimits()
    proof = evidence or verdict.evidence
    refusal = _refuse(
        verdict,
        plan=plan,
        proof=proof,
        quarantined=quarantined,
        live_baseline=live_baseline,
        live_guard=live_guard,
    )
    if refusal is not None:
        return refusal
    assert verdict.speedup is not None, "a promoting verdict carries a speedup"
    assert proof is not None, "refused above"
    covered = covered_share(verdict) * share
    saving = saving_of(verdict, share=share)
    if saving < limits.min_saving:
        return Refusal(
            reason=RefusalReason.NOT_WORTH_IT,
            detail=f"saves {saving:.2%} of kernel time, {limits.min_saving:.2%} is required",
        )
    risks = _risks(verdict, plan=plan, share=covered, trust=trust, limits=limits)
    risks += _circumstances(
        verdict, first_swap=first_swap, over_library=over_library, limits=limits
    )
    return Proposal(
        id=proposal_id(
            target=target,
            artifact=verdict.candidate,
            baseline=live_baseline,
            environment=plan.environment,
            attempt=attempt,
        ),
        target=target,
        definition=plan.definition,
        artifact=verdict.candidate,
        baseline=live_baseline,
        guard=verdict.guard,
        speedup=verdict.speedup,
        share=covered,
        expected_saving=saving,
        risk=_worst(risk for risk, _ in risks),
        risk_reasons=tuple(why for _, why in risks),
        trust=trust,
        evidence=proof,
        experiment=plan.id,
        requested_by=requested_by,
        created_at=now,
        expires_at=now + ttl,
        environment=plan.environment,
        attempt=attempt,
    )


def proposal_id(
    *, target: str, artifact: Digest, baseline: Digest, environment: Digest, attempt: int = 1
) -> str:
    """Return the id of a proposal; the same win, environment and attempt give the same id.

    Examples
    --------
    >>> same = {"target": "t", "artifact": "a", "baseline": "b", "environment": "e"}
    >>> proposal_id(**same) == digest_of(["t", "a", "b", "e"])
    True
    >>> proposal_id(**same, attempt=2) == proposal_id(**same)
    False
    """
    world = [target, artifact, baseline, environment]
    return digest_of(world if attempt == 1 else [*world, attempt])


def covered_share(verdict: Verdict) -> float:
    """Share of the measured time, weighted by launches, of the shapes that the guard allows.

    Examples
    --------
    >>> from retuned.stages.verdict import Reason
    >>> nothing = Verdict(status=Status.REJECT, reason=Reason.SLOWER, gate="G4",
    ...                   candidate="sha256:" + "0" * 64, incumbent="sha256:" + "1" * 64)
    >>> covered_share(nothing)
    0.0
    """
    total = sum(s.weight * s.incumbent_us for s in verdict.shapes)
    inside = sum(s.weight * s.incumbent_us for s in verdict.shapes if verdict.guard.allows(s.axes))
    return inside / total if total > 0.0 else 0.0


def share_in(hypothesis: Hypothesis | None, verdict: Verdict) -> float:
    """Return the share of the server's time that the shapes of a win take; 0 without a hypothesis.

    Replays of graphs are not timed in a server, and a hypothesis on a tunable has them with the
    least time that they may take. The experiment timed a launch of each shape; the longer counts.

    Parameters
    ----------
    hypothesis
        What the experiment was about.
    verdict
        Result of the variant that won.
    """
    if hypothesis is None:
        return 0.0
    if not hypothesis.whole_us:
        return hypothesis.share
    measured_us = sum(s.weight * s.incumbent_us for s in verdict.shapes)
    return min(1.0, max(hypothesis.share, measured_us / hypothesis.whole_us))


def saving_of(verdict: Verdict, *, share: float) -> float:
    """Return the share of kernel time that a win saves, from the lower bound of its speedup.

    Parameters
    ----------
    verdict
        A promoting verdict; others save nothing.
    share
        Share of kernel time of the plan's shapes, 0 to 1.
    """
    if verdict.speedup is None:
        return 0.0
    return max(0.0, covered_share(verdict) * share * (1.0 - 1.0 / verdict.speedup.lower))


def _refuse(
    verdict: Verdict,
    *,
    plan: ExperimentPlan,
    proof: Digest | None,
    quarantined: Collection[Digest],
    live_baseline: Digest,
    live_guard: Guard | None,
) -> Refusal | None:
    refusals = (
        (
            verdict.status is not Status.PROMOTE,
            RefusalReason.NOT_PROMOTED,
            f"the verdict is {verdict.status} ({verdict.reason})",
        ),
        (
            verdict.candidate in quarantined,
            RefusalReason.QUARANTINED,
            "the artifact was rolled back recently",
        ),
        (
            verdict.candidate == live_baseline,
            RefusalReason.ALREADY_LIVE,
            "the artifact is already in production",
        ),
        (
            verdict.incumbent != live_baseline or plan.incumbent != live_baseline,
            RefusalReason.STALE_BASELINE,
            f"measured against {verdict.incumbent}, in production is {live_baseline}",
        ),
        (
            live_guard is not None and not verdict.guard.covers(live_guard),
            RefusalReason.NARROWER_THAN_LIVE,
            f"wins for {verdict.guard}, but the variant in production serves {live_guard}",
        ),
        (
            proof is None,
            RefusalReason.MISSING_EVIDENCE,
            "the verdict names no raw numbers, so it cannot be verified",
        ),
        (
            covered_share(verdict) <= 0.0,
            RefusalReason.NOTHING_COVERED,
            f"the guard ({verdict.guard}) excludes every measured shape",
        ),
    )
    for refused, reason, detail in refusals:
        if refused:
            return Refusal(reason=reason, detail=detail)
    return None


def _risks(
    verdict: Verdict,
    *,
    plan: ExperimentPlan,
    share: float,
    trust: TrustClass,
    limits: ProposalLimits,
) -> tuple[tuple[Risk, str], ...]:
    """Collect the risks that follow from the author and from the affected share."""
    found: list[tuple[Risk, str]] = []
    if trust is TrustClass.GENERATED:
        found.append((Risk.MEDIUM, "source written by a generator"))
    if share >= limits.huge_share:
        found.append((Risk.HIGH, f"touches {share:.0%} of kernel time"))
    elif share >= limits.wide_share:
        found.append((Risk.MEDIUM, f"touches {share:.0%} of kernel time"))
    outside = sum(not verdict.guard.allows(w.axes) for w in plan.workloads)
    if outside:
        found.append(
            (
                Risk.MEDIUM,
                f"wins at some shapes only ({verdict.guard}); {outside} of "
                f"{len(plan.workloads)} stay with the incumbent",
            )
        )
    return tuple(found)


def _circumstances(
    verdict: Verdict, *, first_swap: bool, over_library: bool, limits: ProposalLimits
) -> tuple[tuple[Risk, str], ...]:
    """Collect the risks that follow from the claim itself."""
    assert verdict.speedup is not None, "a promoting verdict carries a speedup"
    found: list[tuple[Risk, str]] = []
    point = verdict.speedup.point
    if over_library and point > limits.suspicious_speedup:
        found.append((Risk.HIGH, f"suspicious: {point:.1f}x over a vendor's library"))
    elif point > limits.incredible_speedup:
        found.append((Risk.HIGH, f"suspicious: {point:.1f}x over the incumbent"))
    if first_swap:
        found.append((Risk.MEDIUM, "first swap of this kernel on this target"))
    if verdict.error_ratio is not None and verdict.error_ratio > 1.0:
        found.append(
            (Risk.MEDIUM, f"error {verdict.error_ratio:.2f} times the incumbent's, within bounds")
        )
    return tuple(found)


def _worst(risks: Iterable[Risk]) -> Risk:
    order = (Risk.LOW, Risk.MEDIUM, Risk.HIGH)
    return max(risks, key=order.index, default=Risk.LOW)


_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainLimits:
    rest: timedelta = timedelta(days=3)
    """How long an expired win waits before it is proposed again."""
    max_age: timedelta = timedelta(days=14)
    """Older measurements are not proposed again."""
    max_proposals: int = 3
    """Proposals of one win before a new experiment must find it again."""


def propose_again(
    *,
    expired: int,
    expired_at: datetime,
    measured_at: datetime,
    now: datetime,
    limits: AgainLimits,
) -> datetime | Refusal:
    """Return when an expired win is proposed again, or why it is not.

    Examples
    --------
    >>> from datetime import UTC
    >>> at = datetime(2026, 3, 2, tzinfo=UTC)
    >>> def said(**changes):
    ...     facts = {"expired": 1, "expired_at": at, "measured_at": at, "now": at} | changes
    ...     return propose_again(**facts, limits=AgainLimits())
    >>> said() - at
    datetime.timedelta(days=3)
    >>> str(said(expired=3).reason), str(said(now=at + timedelta(days=15)).reason)
    ('expired-too-often', 'old-evidence')
    """
    age = now - measured_at
    if age > limits.max_age:
        allowed = limits.max_age.total_seconds() / _DAY_S
        days = age.total_seconds() / _DAY_S
        detail = f"measured {days:.1f} days ago, {allowed:.1f} are allowed"
        return Refusal(reason=RefusalReason.OLD_EVIDENCE, detail=detail)
    if expired >= limits.max_proposals:
        detail = f"it expired {expired} times without a decision"
        return Refusal(reason=RefusalReason.EXPIRED_TOO_OFTEN, detail=detail)
    return expired_at + limits.rest
