"""The gate: one case each, then the invariants that must hold in every world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_invalid

from retuned.contract import Digest, Guard, TrustClass
from retuned.stages.gate import (
    GPU_MODEL_LABEL,
    DecisionKind,
    FreezeScope,
    GateDecision,
    GateReason,
    GateState,
    IgnoredReason,
    KernelTuningPolicy,
    SwapDecision,
    TuningFreeze,
    decide,
    explain,
    is_program,
    judge_windows,
    person,
    select_policy,
    under,
    windows_of,
)
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.verdict import Interval

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)  # a Wednesday
EVIDENCE: Digest = "sha256:" + "e" * 64
ARTIFACT: Digest = "sha256:" + "a" * 64
OTHER: Digest = "sha256:" + "b" * 64
BASELINE: Digest = "sha256:" + "0" * 64


def proposal(**changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "id": "sha256:" + "1" * 64,
        "target": "local",
        "definition": "linear_w8",
        "artifact": ARTIFACT,
        "baseline": BASELINE,
        "guard": Guard(),
        "speedup": Interval(lower=1.2, point=1.3, upper=1.4, confidence=0.99),
        "share": 0.2,
        "expected_saving": 0.03,
        "risk": Risk.LOW,
        "risk_reasons": (),
        "trust": TrustClass.PARAMETERS,
        "evidence": EVIDENCE,
        "experiment": "sha256:" + "2" * 64,
        "requested_by": "retuned",
        "created_at": NOW - timedelta(hours=1),
        "expires_at": NOW + timedelta(hours=5),
    }
    return Proposal(**(values | changes))


def policy(**spec: Any) -> KernelTuningPolicy:
    return KernelTuningPolicy.model_validate(
        {
            "apiVersion": "retuned.dev/v1alpha1",
            "kind": "KernelTuningPolicy",
            "metadata": {"name": spec.pop("name", "test")},
            "spec": {
                "mode": "Enforce",
                "gates": [{"name": "one", "approvals": {"required": 1}}],
            }
            | spec,
        }
    )


def gate(**approvals: Any) -> list[dict[str, Any]]:
    return [{"name": "g", "approvals": {"required": 1} | approvals}]


def says(user: str, rules: KernelTuningPolicy, **changes: Any) -> SwapDecision:
    values: dict[str, Any] = {
        "proposal": proposal().id,
        "digest": ARTIFACT,
        "decision": DecisionKind.APPROVE,
        "user": user,
        "groups": (),
        "comment": "looks good",
        "at": NOW - timedelta(minutes=5),
        "policy_digest": rules.digest,
    }
    return SwapDecision(**(values | changes))


# --- one case each ---------------------------------------------------------------------------


def answer(
    subject: Proposal,
    rules: KernelTuningPolicy | None,
    *decisions: SwapDecision,
    freezes: tuple[TuningFreeze, ...] = (),
    env: str = "dev",
    now: datetime = NOW,
) -> GateDecision:
    return decide(
        subject,
        policy=rules,
        policy_digest=rules.digest if rules else None,
        decisions=decisions,
        freezes=freezes,
        env=env,
        now=now,
    )


def freeze(**changes: Any) -> TuningFreeze:
    values: dict[str, Any] = {"id": "f", "user": "ada", "at": NOW - timedelta(days=1)}
    return TuningFreeze(**(values | changes))


def verdict(decision: GateDecision) -> tuple[GateState, GateReason]:
    return decision.state, decision.reason


def test_one_person_is_enough_where_one_is_asked() -> None:
    rules = policy()
    waiting = answer(proposal(), rules)
    assert verdict(waiting) == (GateState.WAITING, GateReason.MISSING_APPROVALS)
    assert (waiting.required, waiting.missing, waiting.received) == (1, 1, ())
    done = answer(proposal(), rules, says("ada", rules))
    assert verdict(done) == (GateState.APPROVED, GateReason.QUORUM)
    assert (done.missing, done.received) == (0, ("ada",))
    assert (done.policy, done.gate, done.policy_digest) == ("default/test", "one", rules.digest)


def test_no_policy_and_a_tie_wait() -> None:
    choice = select_policy([], proposal(), labels={})
    assert (choice.policy, choice.reason, choice.digest) == (None, GateReason.NO_POLICY, None)
    assert verdict(answer(proposal(), None)) == (GateState.WAITING, GateReason.NO_POLICY)
    tied = select_policy([policy(name="a"), policy(name="b")], proposal(), labels={})
    assert (tied.policy, tied.reason) == (None, GateReason.POLICY_TIE)
    decision = decide(
        proposal(), policy=None, policy_digest=None, decisions=(), freezes=(), env="dev",
        now=NOW, absent=tied.reason,
    )  # fmt: skip
    assert verdict(decision) == (GateState.WAITING, GateReason.POLICY_TIE)


def test_the_highest_matching_policy_decides_and_ties_below_do_not_matter() -> None:
    low = [policy(name="a"), policy(name="b")]
    high = policy(name="c", priority=5)
    choice = select_policy([*low, high], proposal(), labels={})
    assert choice.policy == high
    assert choice.matching == ("default/c", "default/a", "default/b")


@pytest.mark.parametrize(
    ("spec", "labels", "matches"),
    [
        ({"selector": {"matchLabels": {"app": "vllm"}}}, {"app": "vllm", "x": "y"}, True),
        ({"selector": {"matchLabels": {"app": "vllm"}}}, {"app": "sglang"}, False),
        ({"selector": {"matchLabels": {"app": "vllm"}}}, {}, False),
        ({"kernels": {"include": ["linear*"]}}, {}, True),
        ({"kernels": {"include": ["Linear*"]}}, {}, False),
        ({"kernels": {"include": ["*"], "exclude": ["*w8"]}}, {}, False),
        ({"gpuModels": ["MI300X"]}, {GPU_MODEL_LABEL: "MI300X"}, True),
        ({"gpuModels": ["MI300X"]}, {GPU_MODEL_LABEL: "H200"}, False),
        ({"gpuModels": ["MI300X"]}, {}, False),
    ],
)
def test_a_policy_matches_by_labels_kernel_and_accelerator(
    spec: dict[str, Any], labels: dict[str, str], matches: bool
) -> None:
    choice = select_policy([policy(**spec)], proposal(), labels=labels)
    assert (choice.policy is not None) == matches


def test_the_first_gate_that_matches_decides() -> None:
    rules = policy(
        gates=[
            {
                "name": "low",
                "when": {"risk": ["low"], "env": ["dev"]},
                "approvals": {"required": 0},
            },
            {"name": "rest", "when": {"env": ["dev"]}, "approvals": {"required": 2}},
        ]
    )
    assert answer(proposal(), rules).gate == "low"
    assert answer(proposal(risk=Risk.MEDIUM), rules).gate == "rest"
    elsewhere = answer(proposal(), rules, env="prod")
    assert verdict(elsewhere) == (GateState.WAITING, GateReason.NO_GATE)


def test_a_gate_without_people_passes_low_risk_by_itself() -> None:
    rules = policy(gates=gate(required=0))
    assert verdict(answer(proposal(), rules)) == (GateState.APPROVED, GateReason.AUTOMATIC)


@pytest.mark.parametrize("changes", [{"trust": TrustClass.GENERATED}, {"risk": Risk.HIGH}])
def test_generated_source_and_high_risk_need_a_person_whatever_the_gate_says(
    changes: dict[str, Any],
) -> None:
    rules = policy(gates=gate(required=0, allowServiceAccounts=True))
    subject = proposal(**changes)
    assert verdict(answer(subject, rules)) == (GateState.WAITING, GateReason.NEEDS_PERSON)
    robot = says("system:serviceaccount:ci:bot", rules)
    assert answer(subject, rules, robot).state is GateState.WAITING
    assert answer(subject, rules, says("ada", rules)).state is GateState.APPROVED


def test_the_floor_is_not_for_people_to_lower() -> None:
    rules = policy(validation={"minSpeedup": 1.25})
    below = answer(proposal(), rules, says("ada", rules))
    assert verdict(below) == (GateState.REJECTED, GateReason.BELOW_MIN_SPEEDUP)
    surer = policy(validation={"confidence": 0.999})
    unsure = answer(proposal(), surer, says("ada", surer))
    assert verdict(unsure) == (GateState.REJECTED, GateReason.CONFIDENCE_TOO_LOW)


def test_a_proposal_without_evidence_is_never_approved() -> None:
    rules = policy(breakGlass={"enabled": True, "group": "leads"}, gates=gate(required=0))
    leader = says("grace", rules, decision=DecisionKind.BREAK_GLASS, groups=("leads",))
    decision = answer(proposal(evidence=None), rules, says("ada", rules), leader)
    assert verdict(decision) == (GateState.WAITING, GateReason.MISSING_EVIDENCE)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"digest": OTHER}, IgnoredReason.OTHER_DIGEST),
        ({"policy_digest": OTHER}, IgnoredReason.OTHER_POLICY),
        ({"policy_digest": None}, IgnoredReason.OTHER_POLICY),
        ({"at": NOW - timedelta(hours=2)}, IgnoredReason.BEFORE_PROPOSAL),
        ({"at": NOW + timedelta(seconds=1)}, IgnoredReason.IN_THE_FUTURE),
        ({"user": "retuned"}, IgnoredReason.REQUESTER),
        ({"user": " ReTuned "}, IgnoredReason.REQUESTER),
        ({"user": "system:serviceaccount:a:b"}, IgnoredReason.SERVICE_ACCOUNT),
        ({"comment": "  "}, IgnoredReason.NO_COMMENT),
        ({"groups": ("other",)}, IgnoredReason.NOT_AN_APPROVER),
    ],
)
def test_an_approval_that_does_not_count_says_why(
    changes: dict[str, Any], why: IgnoredReason
) -> None:
    rules = policy(gates=gate(requireComment=True, **{"from": [{"group": "sre"}]}))
    good = says("ada", rules, groups=("sre",))
    assert answer(proposal(), rules, good).state is GateState.APPROVED
    bad = good.model_copy(update=changes)
    decision = answer(proposal(), rules, bad)
    assert decision.state is GateState.WAITING
    assert [i.reason for i in decision.ignored] == [why]


def test_a_decision_on_another_proposal_is_not_even_listed() -> None:
    rules = policy()
    decision = answer(proposal(), rules, says("ada", rules, proposal="other"))
    assert (decision.state, decision.ignored) == (GateState.WAITING, ())


def test_who_asked_may_approve_only_where_the_policy_says_so() -> None:
    lax = policy(gates=gate(excludeRequester=False))
    subject = proposal(requested_by="ada")
    assert answer(subject, lax, says("ada", lax)).state is GateState.APPROVED
    assert answer(subject, policy(), says("Ada", policy())).state is GateState.WAITING


def test_one_person_is_one_however_the_name_is_typed() -> None:
    rules = policy(gates=gate(required=2))
    twice = [says(name, rules) for name in ("ada", "ADA", "ada ", "\uff41da")]
    decision = answer(proposal(), rules, *twice)
    assert (decision.state, decision.missing) == (GateState.WAITING, 1)


def test_two_people_from_one_group_are_not_two_groups() -> None:
    rules = policy(
        gates=gate(
            required=2, distinctGroups=True, **{"from": [{"group": "gpu"}, {"group": "sre"}]}
        )
    )
    gpu = [says(name, rules, groups=("gpu",)) for name in ("ada", "alan")]
    waiting = answer(proposal(), rules, *gpu)
    assert (waiting.state, waiting.missing) == (GateState.WAITING, 1)
    assert waiting.missing_from == ("group sre",)
    assert [i.reason for i in waiting.ignored] == [IgnoredReason.SAME_GROUP]
    both = says("grace", rules, groups=("gpu", "sre"))
    assert answer(proposal(), rules, both).state is GateState.WAITING  # one person is not two


def test_a_person_of_both_groups_is_seated_where_that_completes_the_quorum() -> None:
    rules = policy(
        gates=gate(
            required=2, distinctGroups=True, **{"from": [{"group": "gpu"}, {"group": "sre"}]}
        )
    )
    early = NOW - timedelta(minutes=30)
    flexible = says("grace", rules, groups=("gpu", "sre"), at=early)  # sits in gpu first
    fixed = says("ada", rules, groups=("gpu",))
    decision = answer(proposal(), rules, flexible, fixed)
    assert decision.state is GateState.APPROVED
    assert set(decision.received) == {"ada", "grace"}


def test_one_rejection_ends_it_even_after_enough_approvals() -> None:
    rules = policy()
    no = says("alan", rules, decision=DecisionKind.REJECT, comment="not today", policy_digest=None)
    decision = answer(proposal(), rules, says("ada", rules), no)
    assert verdict(decision) == (GateState.REJECTED, GateReason.REJECTED_BY_PERSON)
    assert "alan" in explain(decision)
    assert "not today" in explain(decision)
    other = no.model_copy(update={"digest": OTHER})
    assert answer(proposal(), rules, says("ada", rules), other).state is GateState.APPROVED


@pytest.mark.parametrize("kind", [DecisionKind.REJECT, DecisionKind.ABORT])
def test_a_clock_that_was_put_back_unsays_no_rejection(kind: DecisionKind) -> None:
    rules = policy()
    before = proposal().created_at - timedelta(days=1)
    stop = says("bob", rules, decision=kind, at=before)
    assert answer(proposal(), rules, says("ada", rules), stop).state is GateState.REJECTED
    early = answer(proposal(), rules, says("ada", rules, at=before))
    assert early.state is GateState.WAITING, "an approval must be of this proposal's time"


def test_time_out_is_expiry_even_with_every_approval() -> None:
    rules = policy()
    yes = says("ada", rules)
    last = proposal().expires_at
    assert (
        answer(proposal(), rules, yes, now=last - timedelta(seconds=1)).state is GateState.APPROVED
    )
    assert verdict(answer(proposal(), rules, yes, now=last)) == (
        GateState.EXPIRED,
        GateReason.EXPIRED,
    )


def test_the_gates_ttl_expires_before_the_proposal_does() -> None:
    rules = policy(gates=gate(ttl="90m"))
    created = proposal().created_at
    early = answer(proposal(), rules, now=created + timedelta(minutes=89))
    assert early.state is GateState.WAITING
    assert early.next_change_at == created + timedelta(minutes=90)
    assert answer(proposal(), rules, now=created + timedelta(minutes=90)).state is GateState.EXPIRED


@pytest.mark.parametrize(
    ("gates", "env", "left"),
    [
        (gate(ttl="90m"), "dev", timedelta(minutes=30)),
        (gate(ttl="7d"), "dev", timedelta(hours=5)),
        ([{**gate(ttl="90m")[0], "when": {"env": ["prod"]}}], "dev", timedelta(hours=5)),
        ([], "dev", timedelta(hours=5)),
    ],
)
def test_a_proposal_under_a_policy_expires_when_its_gate_has_it_expire(
    gates: list[dict[str, Any]], env: str, left: timedelta
) -> None:
    rules = policy(gates=gates)
    made = under(proposal(), rules, env=env)
    assert made == proposal(expires_at=NOW + left)
    before = made.expires_at - timedelta(seconds=1)
    assert answer(proposal(), rules, env=env, now=before).state is GateState.WAITING
    assert answer(proposal(), rules, env=env, now=made.expires_at).state is GateState.EXPIRED


def test_a_proposal_without_a_policy_has_its_own_time() -> None:
    assert under(proposal(), None, env="prod") == proposal()


def test_modes_hold_back_whatever_people_say() -> None:
    watching = policy(mode="ObserveOnly")
    assert verdict(answer(proposal(), watching, says("ada", watching))) == (
        GateState.OBSERVE_ONLY,
        GateReason.OBSERVE_ONLY,
    )
    dry = policy(mode="DryRun")
    decision = answer(proposal(), dry, says("ada", dry))
    assert verdict(decision) == (GateState.OBSERVE_ONLY, GateReason.DRY_RUN)
    assert "would be approved" in decision.detail


def test_a_freeze_holds_what_is_agreed_and_ends_by_itself() -> None:
    rules, until = policy(), NOW + timedelta(hours=2)
    yes = says("ada", rules)
    frozen = answer(proposal(), rules, yes, freezes=(freeze(until=until, reason="incident"),))
    assert verdict(frozen) == (GateState.FROZEN, GateReason.FROZEN)
    assert frozen.next_change_at == until
    assert "incident" in explain(frozen)
    over = answer(proposal(), rules, yes, freezes=(freeze(until=until),), now=until)
    assert over.state is GateState.APPROVED
    elsewhere = freeze(scope=FreezeScope(targets=("other*",)))
    assert answer(proposal(), rules, yes, freezes=(elsewhere,)).state is GateState.APPROVED
    here = freeze(scope=FreezeScope(targets=("loc*",), kernels=("linear*",)))
    assert answer(proposal(), rules, yes, freezes=(here,)).state is GateState.FROZEN


def test_two_freezes_end_with_the_later_one() -> None:
    rules = policy()
    sooner, later = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    both = (freeze(id="a", until=sooner), freeze(id="b", until=later))
    assert answer(proposal(), rules, says("ada", rules), freezes=both).next_change_at == later
    forever = (*both, freeze(id="c"))
    frozen = answer(proposal(), rules, says("ada", rules), freezes=forever)
    assert frozen.next_change_at == proposal().expires_at


OFFICE = {"kind": "allow", "schedule": "0 9 * * MON-THU", "duration": "8h"}
NIGHT = {"kind": "allow", "schedule": "0 22 * * *", "duration": "2h"}
TODAY = {"kind": "deny", "schedule": "0 0 18 11 *", "duration": "24h"}


def test_a_closed_window_schedules_and_says_when_it_opens() -> None:
    rules = policy(windows=[NIGHT], gates=gate(ttl="7d"))
    subject = proposal(expires_at=NOW + timedelta(days=2))
    decision = answer(subject, rules, says("ada", rules))
    assert verdict(decision) == (GateState.SCHEDULED, GateReason.WINDOW_CLOSED)
    assert decision.next_change_at == NOW.replace(hour=22)
    opened = answer(subject, rules, says("ada", rules), now=NOW.replace(hour=22))
    assert opened.state is GateState.APPROVED
    assert opened.next_change_at == NOW.replace(day=19, hour=0)


@pytest.mark.parametrize("mode", ["required", "observe"])
def test_a_swap_waits_for_the_windows_of_its_live_proof(mode: str) -> None:
    """The night is for proofs, and swaps are forbidden on the eighteenth."""
    proofs = {"mode": mode, "windows": [NIGHT]}
    rules = policy(windows=[TODAY], liveProof=proofs, gates=gate(ttl="7d"))
    subject = proposal(expires_at=NOW + timedelta(days=2))
    waits = answer(subject, rules, says("ada", rules))
    assert verdict(waits) == (GateState.SCHEDULED, GateReason.WINDOW_CLOSED)
    assert "for live proofs: " in waits.detail
    assert waits.next_change_at == NOW.replace(day=19, hour=0), "the later of both"
    later = answer(subject, rules, says("ada", rules), now=NOW.replace(day=19, hour=1))
    assert later.state is GateState.SCHEDULED
    assert later.next_change_at == NOW.replace(day=19, hour=22)
    opened = answer(subject, rules, says("ada", rules), now=NOW.replace(day=19, hour=22))
    assert opened.state is GateState.APPROVED
    assert opened.next_change_at == NOW.replace(day=20, hour=0), "the earlier of both"


def test_without_a_proof_its_windows_mean_nothing() -> None:
    rules = policy(liveProof={"mode": "off", "windows": [NIGHT]}, gates=gate(ttl="7d"))
    assert answer(proposal(), rules, says("ada", rules)).state is GateState.APPROVED


def test_a_deny_window_of_proofs_denies_no_swap_in_progress() -> None:
    rules = policy(liveProof={"windows": [TODAY]}, gates=gate())
    state = windows_of(rules, now=NOW)
    assert (state.allowed, state.denied) == (False, False)


def test_windows_of_proofs_have_no_overrun() -> None:
    place = ("spec", "liveProof", "windows", 0, "overrun")
    with raises_invalid(*place, kind="extra_forbidden"):
        policy(liveProof={"windows": [NIGHT | {"overrun": "Stop"}]})


def test_broken_glass_opens_a_closed_window_but_neither_a_deny_nor_a_freeze() -> None:
    glass = {"enabled": True, "group": "leads"}
    rules = policy(windows=[NIGHT], gates=gate(required=2), breakGlass=glass)
    leader = says("grace", rules, decision=DecisionKind.BREAK_GLASS, groups=("leads",))
    opened = answer(proposal(), rules, leader)
    assert verdict(opened) == (GateState.APPROVED, GateReason.BREAK_GLASS)
    assert opened.received == ("grace",)
    assert "grace" in explain(opened)
    frozen = answer(proposal(), rules, leader, freezes=(freeze(),))
    assert frozen.state is GateState.FROZEN
    denied = policy(windows=[OFFICE, TODAY], gates=gate(required=2), breakGlass=glass)
    again = leader.model_copy(update={"policy_digest": denied.digest})
    assert answer(proposal(), denied, again).state is GateState.SCHEDULED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"groups": ("gpu",)}, IgnoredReason.NO_BREAK_GLASS),
        ({"comment": ""}, IgnoredReason.NO_COMMENT),
        ({"user": "retuned"}, IgnoredReason.SERVICE_ACCOUNT),
        ({"digest": OTHER}, IgnoredReason.OTHER_DIGEST),
    ],
)
def test_broken_glass_needs_the_group_a_reason_and_a_person(
    changes: dict[str, Any], why: IgnoredReason
) -> None:
    rules = policy(breakGlass={"enabled": True, "group": "leads"})
    leader = says("grace", rules, decision=DecisionKind.BREAK_GLASS, groups=("leads",))
    decision = answer(proposal(), rules, leader.model_copy(update=changes))
    assert decision.state is GateState.WAITING
    assert [i.reason for i in decision.ignored] == [why]


def test_glass_cannot_be_broken_where_the_policy_has_none() -> None:
    rules = policy()
    leader = says("grace", rules, decision=DecisionKind.BREAK_GLASS, groups=("leads",))
    assert answer(proposal(), rules, leader).state is GateState.WAITING


def test_the_sentence_says_who_is_still_asked() -> None:
    rules = policy(gates=gate(required=2, **{"from": [{"group": "sre"}, {"user": "ada"}]}))
    text = explain(answer(proposal(), rules))
    assert text.startswith("Waiting (policy default/test, gate g): 0 of 2 approvals, 2 more from")
    assert "group sre or user ada" in text
    assert "next change 2026-11-18 15:00 UTC" in text


# --- invariants ------------------------------------------------------------------------------

USERS = st.sampled_from(["ada", "ADA", "grace", "alan", "retuned", "system:serviceaccount:x:y"])
GROUPS = st.lists(st.sampled_from(["gpu", "sre", "leads"]), max_size=3, unique=True).map(tuple)
FROM = [{"group": "gpu"}, {"group": "sre"}]
WINDOWS = st.lists(
    st.sampled_from([OFFICE, NIGHT, TODAY, {**TODAY, "schedule": "0 0 19 11 *"}]),
    max_size=3,
)


@st.composite
def policies(draw: st.DrawFn) -> KernelTuningPolicy:
    required = draw(st.integers(0, 2))
    source = draw(st.sampled_from([[], FROM]))
    return policy(
        mode=draw(st.sampled_from(["Enforce", "DryRun", "ObserveOnly"])),
        validation={"minSpeedup": draw(st.sampled_from([1.0, 1.1, 1.25]))},
        gates=gate(
            required=required,
            distinctGroups=bool(source) and draw(st.booleans()),
            requireComment=draw(st.booleans()),
            **{"from": source},
        ),
        windows=draw(WINDOWS),
        breakGlass={"enabled": True, "group": "leads"} if draw(st.booleans()) else {},
    )


@st.composite
def spoken(draw: st.DrawFn, rules: KernelTuningPolicy) -> SwapDecision:
    return SwapDecision(
        proposal=draw(st.sampled_from([proposal().id, proposal().id, "other"])),
        digest=draw(st.sampled_from([ARTIFACT, ARTIFACT, OTHER])),
        decision=draw(st.sampled_from(list(DecisionKind) + [DecisionKind.APPROVE] * 6)),
        user=draw(USERS),
        groups=draw(GROUPS),
        comment=draw(st.sampled_from(["", "fine"])),
        at=NOW + timedelta(minutes=draw(st.integers(-90, 90))),
        policy_digest=draw(st.sampled_from([rules.digest, rules.digest, OTHER, None])),
    )


@dataclass(frozen=True)
class World:
    subject: Proposal
    rules: KernelTuningPolicy
    decisions: tuple[SwapDecision, ...]
    freezes: tuple[TuningFreeze, ...]
    now: datetime

    def answer(self, **changes: Any) -> GateDecision:
        other = replace(self, **changes)
        return answer(
            other.subject, other.rules, *other.decisions, freezes=other.freezes, now=other.now
        )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    rules = draw(policies())
    subject = proposal(
        risk=draw(st.sampled_from(list(Risk))),
        trust=draw(st.sampled_from(list(TrustClass))),
        evidence=draw(st.sampled_from([EVIDENCE, EVIDENCE, None])),
        expires_at=NOW + timedelta(hours=draw(st.integers(1, 60))),
    )
    freezes = draw(
        st.lists(
            st.builds(
                lambda until, targets: freeze(until=until, scope=FreezeScope(targets=targets)),
                st.sampled_from([None, NOW, NOW + timedelta(hours=3)]),
                st.sampled_from([(), ("local",), ("other",)]),
            ),
            max_size=1,
        )
    )
    return World(
        subject=subject,
        rules=rules,
        decisions=tuple(draw(st.lists(spoken(rules), max_size=5))),
        freezes=tuple(freezes),
        now=NOW + timedelta(hours=draw(st.integers(-1, 72))),
    )


MANY = settings(max_examples=120, deadline=None)


def people(world: World) -> set[str]:
    """Persons with a valid approval of this artifact under this policy, counted independently."""
    rule = world.rules.spec.gates[0].approvals
    return {
        d.user.strip().casefold()
        for d in world.decisions
        if d.decision is DecisionKind.APPROVE
        and d.proposal == world.subject.id
        and d.digest == world.subject.artifact
        and d.policy_digest == world.rules.digest
        and world.subject.created_at <= d.at <= world.now
        and d.user != "retuned"
        and not d.user.startswith("system:")
        and (d.comment or not rule.require_comment)
        and (not rule.from_ or {"gpu", "sre"} & set(d.groups))
    }


@MANY
@given(worlds())
def test_i1_approved_only_with_a_quorum_bound_to_artifact_and_policy(world: World) -> None:
    decision = world.answer()
    if decision.state is not GateState.APPROVED or decision.reason is GateReason.BREAK_GLASS:
        return
    rule = world.rules.spec.gates[0].approvals
    careful = world.subject.trust is TrustClass.GENERATED or world.subject.risk is Risk.HIGH
    assert len(people(world)) >= max(rule.required, int(careful))
    assert len(set(map(person, decision.received))) == len(decision.received) >= decision.required


@MANY
@given(worlds(), st.sampled_from([DecisionKind.ABORT, DecisionKind.REJECT]), USERS)
def test_i2_i6_an_abort_or_rejection_ends_it_from_every_state(
    world: World, kind: DecisionKind, user: str
) -> None:
    stop = says(user, world.rules, decision=kind, comment="", policy_digest=None)
    decision = world.answer(decisions=(*world.decisions, stop))
    assert decision.state is GateState.REJECTED


@MANY
@given(worlds())
def test_i4_nothing_starts_in_a_deny_window_or_a_freeze(world: World) -> None:
    decision = world.answer()
    if decision.state is GateState.APPROVED:
        assert not judge_windows(world.rules.spec.windows, now=world.now).denied
        assert not any(
            (f.until is None or f.until > world.now) and f.scope.targets in {(), ("local",)}
            for f in world.freezes
        )
        assert (
            judge_windows(world.rules.spec.windows, now=world.now).allowed
            or decision.reason is GateReason.BREAK_GLASS
        )


@MANY
@given(worlds())
def test_i6_the_requester_and_programs_never_count(world: World) -> None:
    for user in world.answer().received:
        assert not is_program(user)
        assert person(user) != person(world.subject.requested_by)


@MANY
@given(worlds())
def test_i7_missing_evidence_never_promotes(world: World) -> None:
    blind = world.subject.model_copy(update={"evidence": None})
    assert world.answer(subject=blind).state is not GateState.APPROVED


@MANY
@given(worlds())
def test_i8_words_about_another_artifact_or_policy_change_nothing(world: World) -> None:
    rest = tuple(
        d
        for d in world.decisions
        if d.digest == ARTIFACT
        and (
            d.policy_digest == world.rules.digest
            or d.decision in {DecisionKind.REJECT, DecisionKind.ABORT}
        )
    )
    assert verdict(world.answer()) == verdict(world.answer(decisions=rest))


@MANY
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_decisions_does_not_matter(world: World, rng: Random) -> None:
    shuffled = list(world.decisions)
    rng.shuffle(shuffled)
    assert verdict(world.answer()) == verdict(world.answer(decisions=tuple(shuffled)))


@MANY
@given(worlds())
def test_the_answer_holds_until_its_next_change(world: World) -> None:
    decision = world.answer()
    if decision.next_change_at is None:
        return
    assert decision.next_change_at > world.now
    settled = replace(world, decisions=tuple(d for d in world.decisions if d.at <= world.now))
    just_before = decision.next_change_at - timedelta(seconds=1)
    if just_before > world.now:
        assert verdict(settled.answer(now=just_before)) == verdict(settled.answer())


@MANY
@given(worlds())
def test_every_answer_survives_json_and_has_a_sentence(world: World) -> None:
    decision = world.answer()
    assert GateDecision.model_validate_json(decision.model_dump_json()) == decision
    assert explain(decision).endswith(".")
    assert (decision.state is GateState.APPROVED) <= (decision.missing == 0)


def test_an_upgrade_leaves_policies_what_they_were_approved_by() -> None:
    """A field that is added must not change digests where nobody writes it: see `_ADDED`."""
    body: dict[str, Any] = {
        "apiVersion": "retuned.dev/v1alpha1",
        "kind": "KernelTuningPolicy",
        "metadata": {"name": "p"},
        "spec": {"mode": "Enforce"},
    }
    known = "sha256:a738fbc8452744762f3f51e044b7cbf48539a4d85656b9684157fa83ca9d2b44"
    assert KernelTuningPolicy.model_validate(body).digest == known
    for said in (
        {"capture": {"enabled": True}},
        {"validation": {"endToEnd": "off"}},
        {"validation": {"batchInvariance": "off"}},
        {"rollout": {"canary": {"shadowFirst": True}}},
        {"rollout": {"shadow": {"maxShare": 0.2}}},
    ):
        other = KernelTuningPolicy.model_validate({**body, "spec": {**body["spec"], **said}})
        assert other.digest != known, said
