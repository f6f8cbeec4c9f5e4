"""Proposals: when a win is worth one, at which risk, for which shapes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.contract import Digest, Guard, TrustClass, Workload
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import (
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    Risk,
    covered_share,
    propose,
    share_in,
)
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
CANDIDATE: Digest = "sha256:" + "a" * 64
INCUMBENT: Digest = "sha256:" + "0" * 64
EVIDENCE: Digest = "sha256:" + "e" * 64
ENVIRONMENT: Digest = "sha256:" + "f" * 64


def interval(lower: float, point: float | None = None) -> Interval:
    middle = point or lower * 1.05
    return Interval(lower=lower, point=middle, upper=middle * 1.05, confidence=0.99)


def shape(m: int, *, weight: float = 1.0, us: float = 100.0) -> ShapeResult:
    return ShapeResult(
        axes={"M": m}, weight=weight, incumbent_us=us, candidate_us=us / 1.5, speedup=interval(1.4)
    )


def win(**changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "status": Status.PROMOTE,
        "reason": Reason.FASTER,
        "gate": "G6",
        "candidate": CANDIDATE,
        "incumbent": INCUMBENT,
        "speedup": interval(1.5),
        "noise_floor_ratio": 1.01,
        "shapes": (shape(1), shape(256)),
        "evidence": EVIDENCE,
    }
    return Verdict(**(values | changes))


def plan() -> ExperimentPlan:
    return ExperimentPlan(
        id="plan",
        hypothesis="h",
        definition="linear_w8",
        workloads=tuple(Workload(definition="linear_w8", axes={"M": m}) for m in (1, 256)),
        incumbent=INCUMBENT,
        environment=ENVIRONMENT,
    )


def ask(verdict: Verdict | None = None, **changes: Any) -> Proposal | Refusal:
    values: dict[str, Any] = {
        "plan": plan(),
        "share": 0.2,
        "target": "local",
        "now": NOW,
        "ttl": timedelta(hours=24),
        "quarantined": (),
        "live_baseline": INCUMBENT,
        "trust": TrustClass.PARAMETERS,
    }
    return propose(verdict or win(), **(values | changes))


def made(verdict: Verdict | None = None, **changes: Any) -> Proposal:
    answer = ask(verdict, **changes)
    assert isinstance(answer, Proposal), answer
    return answer


def test_a_clear_win_is_proposed_with_its_numbers() -> None:
    proposal = made()
    assert (proposal.artifact, proposal.baseline) == (CANDIDATE, INCUMBENT)
    assert proposal.expected_saving == pytest.approx(0.2 * (1 - 1 / 1.5))
    assert (proposal.created_at, proposal.expires_at) == (NOW, NOW + timedelta(hours=24))
    assert (proposal.risk, proposal.risk_reasons) == (Risk.LOW, ())
    assert proposal.evidence == EVIDENCE


def test_the_id_depends_on_target_artifact_and_baseline_only() -> None:
    assert made().id == made(now=NOW + timedelta(days=1), share=0.3).id
    assert made().id != made(target="other").id
    assert made().id != made(win(candidate="sha256:" + "c" * 64)).id


@pytest.mark.parametrize(
    ("verdict", "changes", "reason"),
    [
        (win(status=Status.AMBIGUOUS, reason=Reason.WITHIN_NOISE), {}, RefusalReason.NOT_PROMOTED),
        (win(status=Status.REJECT, reason=Reason.WRONG_OUTPUT), {}, RefusalReason.NOT_PROMOTED),
        (win(), {"quarantined": {CANDIDATE}}, RefusalReason.QUARANTINED),
        (win(), {"live_baseline": CANDIDATE}, RefusalReason.ALREADY_LIVE),
        (win(), {"live_baseline": "sha256:" + "9" * 64}, RefusalReason.STALE_BASELINE),
        (win(incumbent="sha256:" + "9" * 64), {}, RefusalReason.STALE_BASELINE),
        (win(evidence=None), {}, RefusalReason.MISSING_EVIDENCE),
        (win(guard=Guard(bounds={"M": (7, 9)})), {}, RefusalReason.NOTHING_COVERED),
        (win(), {"share": 0.0}, RefusalReason.NOT_WORTH_IT),
        (win(speedup=interval(1.02)), {"share": 0.05}, RefusalReason.NOT_WORTH_IT),
    ],
)
def test_what_is_not_proposed_says_why(
    verdict: Verdict, changes: dict[str, Any], reason: RefusalReason
) -> None:
    answer = ask(verdict, **changes)
    assert isinstance(answer, Refusal)
    assert answer.reason is reason
    assert answer.detail


def test_evidence_may_come_from_the_caller() -> None:
    assert made(win(evidence=None), evidence=EVIDENCE).evidence == EVIDENCE


def test_the_worth_is_judged_by_the_lower_bound_not_the_estimate() -> None:
    lucky = win(speedup=interval(1.02, point=3.0))
    answer = ask(lucky, share=0.05)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.NOT_WORTH_IT


def test_a_narrow_guard_counts_only_its_share_and_raises_the_risk() -> None:
    half = win(
        guard=Guard(bounds={"M": (100, 300)}), shapes=(shape(1, us=300.0), shape(256, us=100.0))
    )
    assert covered_share(half) == pytest.approx(0.25)
    proposal = made(half)
    assert proposal.share == pytest.approx(0.05)
    assert proposal.risk is Risk.MEDIUM
    assert any("some shapes only" in why for why in proposal.risk_reasons)


@pytest.mark.parametrize(
    ("verdict", "changes", "risk", "why"),
    [
        (win(), {"trust": TrustClass.GENERATED}, Risk.MEDIUM, "generator"),
        (win(), {"share": 0.3}, Risk.MEDIUM, "30%"),
        (win(), {"share": 0.7}, Risk.HIGH, "70%"),
        (win(), {"first_swap": True}, Risk.MEDIUM, "first swap"),
        (win(error_ratio=1.5), {}, Risk.MEDIUM, "error 1.50"),
        (win(speedup=interval(2.5)), {"over_library": True}, Risk.HIGH, "suspicious"),
        (win(speedup=interval(2.5)), {}, Risk.LOW, ""),
        (win(speedup=interval(30.0)), {}, Risk.HIGH, "suspicious"),
    ],
)
def test_the_risk_names_its_reasons(
    verdict: Verdict, changes: dict[str, Any], risk: Risk, why: str
) -> None:
    proposal = made(verdict, **changes)
    assert proposal.risk is risk
    assert any(why in reason for reason in proposal.risk_reasons) or not why


def test_the_trust_is_the_low_one_unless_said_otherwise() -> None:
    answer = propose(
        win(), plan=plan(), share=0.2, target="local", now=NOW, ttl=timedelta(hours=1),
        quarantined=(), live_baseline=INCUMBENT,
    )  # fmt: skip
    assert isinstance(answer, Proposal)
    assert answer.trust is TrustClass.GENERATED


@given(
    lower=st.floats(1.011, 50.0),
    share=st.floats(0.0, 1.0),
    low=st.integers(0, 300),
    high=st.integers(0, 300),
)
def test_a_proposal_never_promises_more_than_its_share(
    lower: float, share: float, low: int, high: int
) -> None:
    guard = Guard(bounds={"M": (min(low, high), max(low, high))})
    answer = ask(win(speedup=interval(lower), guard=guard), share=share)
    if isinstance(answer, Proposal):
        assert 0.0 < answer.expected_saving < answer.share <= share
        assert answer.expected_saving >= ProposalLimits().min_saving
        assert any(guard.allows({"M": m}) for m in (1, 256))


def test_a_win_at_fewer_shapes_than_the_live_variant_serves_is_not_proposed() -> None:
    narrow = win(guard=Guard(bounds={"M": (1, 4)}), shapes=(shape(1), shape(256)))
    answer = ask(narrow, live_guard=Guard(bounds={"M": (1, 256)}))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.NARROWER_THAN_LIVE
    assert "1 <= M <= 4" in answer.detail
    assert "1 <= M <= 256" in answer.detail


def test_a_win_at_more_shapes_than_the_live_variant_serves_replaces_it() -> None:
    wide = win(guard=Guard(bounds={"M": (1, 256)}))
    assert isinstance(ask(wide, live_guard=Guard(bounds={"M": (64, 128)})), Proposal)


def test_shapes_outside_the_guard_save_nothing() -> None:
    everywhere, half = ask(win()), ask(win(guard=Guard(bounds={"M": (256, 256)})))
    assert isinstance(everywhere, Proposal)
    assert isinstance(half, Proposal)
    assert half.expected_saving == pytest.approx(everywhere.expected_saving / 2)


def believed(*, share: float, whole_us: float) -> Hypothesis:
    return Hypothesis(
        id="h",
        definition="tunable:a",
        workloads=(Workload(definition="tunable:a", axes={"M": 64}, weight=1000.0),),
        share=share,
        expected_gain_ratio=1.2,
        expected_saving=share / 6,
        because="-",
        whole_us=whole_us,
    )


@pytest.mark.parametrize(
    ("share", "whole_us", "expected"),
    [
        (0.1, 0.0, 0.1),  # measured in the server
        (0.1, 8e5, 0.25),  # 1,000 launches of 200 us in 0.8 s of work
        (0.4, 8e5, 0.4),  # slower in place than in the experiment
        (0.1, 1e3, 1.0),  # never more than the whole
    ],
)
def test_time_that_the_server_does_not_see_is_that_of_the_experiment(
    share: float, whole_us: float, expected: float
) -> None:
    verdict = win(shapes=(shape(64, weight=1000.0, us=200.0),))
    assert share_in(believed(share=share, whole_us=whole_us), verdict) == pytest.approx(expected)
    assert share_in(None, verdict) == 0.0
