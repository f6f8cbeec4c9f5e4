"""Attribution of an alarm: which swaps are tried off, in which order, and what the alarm says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.stages.drift import DriftAction, DriftCode, DriftReason, DriftReport, attributed
from retuned.stages.watch.attribution import (
    HOLD_S,
    RECENT_S,
    AttributionOutcome,
    AttributionState,
    Suspect,
    SuspectResult,
    finding,
    must_send,
    suspects,
)
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict

NOW_S = 1e9


def suspect(definition: str, *, age_s: float = 60.0) -> Suspect:
    return Suspect(
        proposal=f"p-{definition}",
        definition=definition,
        artifact="sha256:" + "a" * 64,
        order=f"o-{definition}",
        since_s=NOW_S - age_s,
    )


def result(
    tried: Suspect, verdict: Verdict | None, *, effect: float = 0.0, withdraws: bool = True
) -> SuspectResult:
    reasons = {
        Verdict.HARMS: ProofReason.SLOWER,
        Verdict.HELPS: ProofReason.FASTER,
        Verdict.NO_MEASURABLE_EFFECT: ProofReason.WITHIN_MARGIN,
        Verdict.TOO_LITTLE_TRAFFIC: ProofReason.FEW_STEPS,
    }
    if verdict is None:
        return SuspectResult(suspect=tried, reason="not-switchable")
    report = ProofReport(verdict=verdict, reason=reasons[verdict], effect=effect)
    harms = verdict is Verdict.HARMS
    return SuspectResult(
        suspect=tried, report=report, reason=str(report.reason), withdraws=withdraws and harms
    )


def state(*names: str) -> AttributionState:
    return AttributionState(began_s=NOW_S, suspects=tuple(map(suspect, names)))


def test_the_kernel_of_the_alarm_comes_first_then_the_newest() -> None:
    old, older = suspect("old", age_s=2 * RECENT_S), suspect("older", age_s=3 * RECENT_S)
    young, younger = suspect("young", age_s=900.0), suspect("younger", age_s=60.0)
    found = suspects([older, young, younger, old], kernels={"old"}, now_s=NOW_S)
    assert [each.definition for each in found] == ["old", "younger", "young"]


def test_without_a_swap_there_is_no_suspect() -> None:
    assert suspects([], kernels={"gemm"}, now_s=NOW_S) == ()
    assert suspects([suspect("gemm", age_s=RECENT_S)], kernels={"rope"}, now_s=NOW_S) == ()


def test_a_cause_ends_it_and_the_others_are_not_tried() -> None:
    begun = state("gemm", "rope", "rms")
    first = begun.after(result(begun.suspects[0], Verdict.NO_MEASURABLE_EFFECT))
    assert first.outcome is AttributionOutcome.TRYING
    assert not must_send(first, now_s=NOW_S + 1.0)
    ended = first.after(result(begun.suspects[1], Verdict.HARMS, effect=0.05))
    assert ended.next_suspect is None
    assert ended.outcome is AttributionOutcome.SWAP
    assert must_send(ended, now_s=NOW_S + 1.0)
    assert finding(ended) == (
        "the swap of rope is the cause: steps take 5.1 % longer with it; it rolls back"
    )


def test_where_the_policy_keeps_it_the_alarm_has_the_command() -> None:
    begun = state("gemm")
    ended = begun.after(result(begun.suspects[0], Verdict.HARMS, effect=0.05, withdraws=False))
    said = finding(ended, command="retuned rollback p-gemm")
    assert said.endswith("roll it back with `retuned rollback p-gemm`")


def test_one_unknown_keeps_the_alarm_from_clearing_swaps() -> None:
    begun = state("gemm", "rope", "rms")
    after = begun.after(result(begun.suspects[0], Verdict.HELPS, effect=-0.02))
    after = after.after(result(begun.suspects[1], None))
    after = after.after(result(begun.suspects[2], Verdict.TOO_LITTLE_TRAFFIC))
    assert after.outcome is AttributionOutcome.UNKNOWN
    assert finding(after) == (
        "whether one of the swaps of rope, rms is the cause is unknown (not-switchable, "
        "few-steps), so check this, clocks, driver and neighbours"
    )


def test_results_come_in_the_order_of_the_suspects() -> None:
    begun = state("gemm", "rope")
    with raises_naming(ValueError, "p-rope"):
        begun.after(result(begun.suspects[1], Verdict.HELPS))


def test_an_alarm_ends_with_what_was_found() -> None:
    shift = DriftReason(
        code=DriftCode.LATENCY_SHIFTED,
        kernel="gemm",
        share_before=0.5,
        share_after=0.5,
        detail="gemm takes 377.8 us instead of 98.3 us (3.84 times)",
    )
    alarm = DriftReport(
        detected=True,
        action=DriftAction.ALARM,
        reasons=(shift,),
        distance=0.0,
        window_start_ns=0,
        sentence="",
    )
    said = attributed(alarm, "the swap of gemm is the cause").sentence
    assert said == f"{shift.detail}; the swap of gemm is the cause."


@given(
    verdicts=st.lists(st.sampled_from([*[*Verdict][:4], None]), min_size=1, max_size=5),
    waited_s=st.floats(0.0, 10.0 * HOLD_S),
)
def test_other_causes_are_named_only_when_no_swap_is_left(
    verdicts: list[Verdict | None], waited_s: float
) -> None:
    after = state(*(f"k{number}" for number in range(len(verdicts))))
    for verdict in verdicts:
        tried = after.next_suspect
        if tried is None:
            break
        after = after.after(result(tried, verdict, effect=0.01))
        if after.next_suspect is not None or after.outcome is AttributionOutcome.SWAP:
            assert "clocks" not in finding(after)
    assert after.next_suspect is None
    cleared = {Verdict.HELPS, Verdict.NO_MEASURABLE_EFFECT}
    assert (after.outcome is AttributionOutcome.SWAP) == (Verdict.HARMS in verdicts)
    assert (after.outcome is AttributionOutcome.NOT_SWAPS) == set(verdicts).issubset(cleared)
    late = state("gemm")
    assert must_send(late, now_s=NOW_S + waited_s) == (waited_s >= HOLD_S)
