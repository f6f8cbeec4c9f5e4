"""Each policy that ships: what it lets through and what not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retuned.contract import Guard, TrustClass
from retuned.stages.gate import (
    DecisionKind,
    GateDecision,
    GateReason,
    GateState,
    KernelTuningPolicy,
    SwapDecision,
    TuningFreeze,
    decide,
    limits_of,
    select_policy,
)
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.swap import spread_by
from retuned.stages.verdict import Interval
from retuned.store.policy_files import check_policy, load_policies, load_policy

FOLDER = Path(__file__).resolve().parents[2] / "policies"
FILES = sorted(FOLDER.glob("*.yaml"))
TUESDAY = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)  # eleven o'clock in Berlin
FRIDAY = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
CHRISTMAS = datetime(2026, 12, 22, 10, 0, tzinfo=UTC)  # a Tuesday


def named(name: str) -> KernelTuningPolicy:
    return load_policy(FOLDER / f"{name}.yaml")


def proposal(now: datetime, **changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "id": "p",
        "target": "server",
        "definition": "rmsnorm",
        "artifact": "sha256:" + "a" * 64,
        "baseline": "sha256:" + "0" * 64,
        "guard": Guard(),
        "speedup": Interval(lower=1.2, point=1.3, upper=1.4, confidence=0.99),
        "share": 0.1,
        "expected_saving": 0.02,
        "risk": Risk.LOW,
        "risk_reasons": (),
        "trust": TrustClass.PARAMETERS,
        "evidence": "sha256:" + "e" * 64,
        "experiment": "x",
        "requested_by": "retuned",
        "created_at": now - timedelta(minutes=30),
        "expires_at": now + timedelta(days=10),
    }
    return Proposal(**(values | changes))


def ask(
    policy: KernelTuningPolicy,
    *people: str,
    now: datetime = TUESDAY,
    env: str = "prod",
    kind: DecisionKind = DecisionKind.APPROVE,
    comment: str = "seen",
    freezes: tuple[TuningFreeze, ...] = (),
    **changes: Any,
) -> GateDecision:
    """Ask with approvals by `people`, each written as ``name:group,group``."""
    subject = proposal(now, **changes)
    decisions = [
        SwapDecision(
            proposal=subject.id,
            digest=subject.artifact,
            decision=kind,
            user=name,
            groups=tuple(filter(None, groups.split(","))),
            comment=comment,
            at=now - timedelta(minutes=1),
            policy_digest=policy.digest,
        )
        for name, _, groups in (one.partition(":") for one in people)
    ]
    return decide(
        subject,
        policy=policy,
        policy_digest=policy.digest,
        decisions=decisions,
        freezes=freezes,
        env=env,
        now=now,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_policy_is_valid_and_explains_itself(path: Path) -> None:
    assert check_policy(path) == ()
    text = path.read_text()
    assert text.startswith("#")  # first what it is for, in words
    assert sum(line.lstrip().startswith("#") for line in text.splitlines()) >= 4


def test_the_policies_stand_side_by_side_without_a_tie() -> None:
    loaded = load_policies([FOLDER])
    assert [p.metadata.name for p in loaded] == [path.stem for path in FILES]
    assert len({p.spec.priority for p in loaded}) == len(loaded)


def test_observe_only_lets_nothing_through() -> None:
    policy = named("observe-only")
    decision = ask(policy, "ada", "grace", "alan")
    assert (decision.state, decision.reason) == (GateState.OBSERVE_ONLY, GateReason.OBSERVE_ONLY)
    everything = select_policy([policy], proposal(TUESDAY), labels={"any": "label"})
    assert everything.policy == policy


def test_the_demo_waits_for_one_person_who_is_not_the_requester() -> None:
    policy = named("laptop-demo")
    assert ask(policy).state is GateState.WAITING
    assert ask(policy, "retuned").state is GateState.WAITING
    assert ask(policy, "ada", comment="").state is GateState.APPROVED
    late = ask(policy, "ada", created_at=TUESDAY - timedelta(hours=1))
    assert late.state is GateState.EXPIRED
    slow = Interval(lower=1.01, point=1.2, upper=1.3, confidence=0.99)
    assert ask(policy, "ada", speedup=slow).reason is GateReason.BELOW_MIN_SPEEDUP


def test_staging_passes_low_risk_by_itself_and_nothing_else() -> None:
    policy = named("staging-auto")
    assert ask(policy, env="staging").reason is GateReason.AUTOMATIC
    assert ask(policy, env="prod").reason is GateReason.NO_GATE
    assert ask(policy, env="staging", risk=Risk.MEDIUM).reason is GateReason.MISSING_APPROVALS
    assert ask(policy, env="staging", risk=Risk.HIGH).state is GateState.WAITING
    generated = ask(policy, env="staging", trust=TrustClass.GENERATED)
    assert generated.reason is GateReason.NEEDS_PERSON
    assert ask(policy, "ada", env="staging", risk=Risk.MEDIUM).state is GateState.APPROVED
    assert ask(policy, env="staging", evidence=None).reason is GateReason.MISSING_EVIDENCE
    elsewhere = select_policy([policy], proposal(TUESDAY), labels={"env": "prod"})
    assert elsewhere.policy is None


def test_production_wants_two_people_of_two_teams_with_a_reason() -> None:
    policy = named("production-two-person")
    both = ("ada:gpu-platform", "grace:sre-oncall")
    assert ask(policy, *both).state is GateState.APPROVED
    assert ask(policy, both[0]).missing_from == ("group sre-oncall",)
    assert ask(policy, "ada:gpu-platform", "alan:gpu-platform").state is GateState.WAITING
    assert ask(policy, "ada:gpu-platform,sre-oncall").state is GateState.WAITING
    assert ask(policy, *both, comment="").state is GateState.WAITING
    assert ask(policy, *both, requested_by="ada").state is GateState.WAITING
    old = ask(policy, *both, created_at=TUESDAY - timedelta(hours=24))
    assert old.state is GateState.EXPIRED
    labels = {"env": "prod"}
    attention = proposal(TUESDAY, definition="paged_attention_v2")
    assert select_policy([policy], attention, labels=labels).policy is None
    assert select_policy([policy], proposal(TUESDAY), labels=labels).policy == policy


def test_business_hours_start_swaps_only_from_monday_to_thursday() -> None:
    policy = named("business-hours")
    assert ask(policy, "ada").state is GateState.APPROVED
    early = ask(policy, "ada", now=TUESDAY.replace(hour=7, minute=59))
    assert early.state is GateState.SCHEDULED
    assert early.next_change_at == TUESDAY.replace(hour=8)
    friday = ask(policy, "ada", now=FRIDAY)
    assert friday.state is GateState.SCHEDULED
    assert friday.next_change_at == datetime(2026, 11, 23, 8, tzinfo=UTC)
    assert ask(policy, now=FRIDAY).state is GateState.WAITING


def test_at_the_years_end_nothing_starts() -> None:
    policy = named("year-end-freeze")
    assert ask(policy, "ada").state is GateState.APPROVED
    held = ask(policy, "ada", now=CHRISTMAS)
    assert (held.state, held.reason) == (GateState.SCHEDULED, GateReason.WINDOW_CLOSED)
    assert "year-end freeze" in held.detail
    last = datetime(2027, 1, 4, 8, 0, tzinfo=UTC)  # Monday, nine o'clock in Berlin
    assert ask(policy, "ada", now=last).state is GateState.APPROVED


def test_breaking_glass_takes_one_leader_with_a_reason_but_no_freeze() -> None:
    policy = named("break-glass")
    both = ("ada:gpu-platform", "grace:sre-oncall")
    glass = DecisionKind.BREAK_GLASS
    assert ask(policy, *both).state is GateState.APPROVED
    assert ask(policy, *both, now=FRIDAY).state is GateState.SCHEDULED
    opened = ask(policy, "mary:sre-leads", kind=glass, now=FRIDAY)
    assert (opened.state, opened.reason) == (GateState.APPROVED, GateReason.BREAK_GLASS)
    assert ask(policy, "ada:gpu-platform", kind=glass).state is GateState.WAITING
    assert ask(policy, "mary:sre-leads", kind=glass, comment="").state is GateState.WAITING
    freeze = TuningFreeze(id="f", user="ada", at=FRIDAY - timedelta(hours=1))
    held = ask(policy, "mary:sre-leads", kind=glass, now=FRIDAY, freezes=(freeze,))
    assert held.state is GateState.FROZEN
    weak = Interval(lower=1.01, point=1.2, upper=1.3, confidence=0.99)
    floor = ask(policy, "mary:sre-leads", kind=glass, speedup=weak)
    assert floor.reason is GateReason.BELOW_MIN_SPEEDUP


def test_production_shadows_first_and_spreads_over_launches_step_by_step() -> None:
    spread = spread_by(limits_of(named("production-two-person")))
    assert [step.fraction for step in spread.canary] == [0.0, 0.01, 0.1, 0.5]
    assert {step.min_checks for step in spread.canary} == {300}
    assert (spread.lease_s, spread.orphan, spread.shadow_share) == (600.0, "rollback", 0.05)
    staging = spread_by(limits_of(named("staging-auto")))
    assert [step.fraction for step in staging.canary] == [0.1]
    assert staging.orphan == "hold"
