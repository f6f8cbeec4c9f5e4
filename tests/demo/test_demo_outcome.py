"""The pure function that decides the exit code: records of a run in, what it did not show out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.demo.journal import live_proof_of
from retuned.demo.outcome import EndedSwap, Ending, Plot, shortcomings
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict

REASONS = {
    Verdict.HELPS: ProofReason.FASTER,
    Verdict.HARMS: ProofReason.SLOWER,
    Verdict.NO_MEASURABLE_EFFECT: ProofReason.WITHIN_MARGIN,
    Verdict.TOO_LITTLE_TRAFFIC: ProofReason.NOISE,
    Verdict.NOT_CONCLUDED: ProofReason.INTERRUPTED,
}
EFFECTS = {Verdict.HELPS: -0.12, Verdict.HARMS: 0.12}


def reported(verdict: Verdict, effect: float | None = None) -> ProofReport:
    """Report of a proof; `effect` is the logarithm of step time, on over off."""
    middle = EFFECTS.get(verdict, 0.0) if effect is None else effect
    return ProofReport(
        verdict=verdict,
        reason=REASONS[verdict],
        effect=middle,
        low=middle - 0.01,
        high=middle + 0.01,
        pairs=10,
        seconds=24.0,
        exposed_s=12.0,
    )


def swap(
    verdict: Verdict | None = Verdict.HELPS,
    *,
    effect: float | None = None,
    kept: bool = True,
    back: bool = False,
    claimed: float = 1.4,
) -> EndedSwap:
    report = None if verdict is None else reported(verdict, effect)
    return EndedSwap(kernel="linear", claimed=claimed, report=report, kept=kept, rolled_back=back)


def withdrawn(verdict: Verdict = Verdict.HARMS, *, claimed: float = 1.4) -> EndedSwap:
    return swap(verdict, kept=False, back=True, claimed=claimed)


def ending(*swaps: EndedSwap, plot: Plot = Plot.HELPFUL, **more: Any) -> Ending:
    body: dict[str, Any] = {"sent": 9, "ok": 9, "failed": 0, "fault_reverted": plot is Plot.HELPFUL}
    return Ending(plot=plot, swaps=swaps, **(body | more))


def test_a_swap_that_is_proven_to_help_and_a_fault_that_is_taken_back_are_all() -> None:
    assert shortcomings(ending(swap())) == ()
    assert shortcomings(ending(swap(back=True))) == (), "the fault took it back after its proof"
    others = [withdrawn(verdict) for verdict in Verdict if verdict is not Verdict.HELPS]
    assert shortcomings(ending(swap(), *others)) == ()


@pytest.mark.parametrize("verdict", [None, *(v for v in Verdict if v is not Verdict.HELPS)])
def test_a_swap_that_stayed_without_being_proven_to_help_is_a_failure_beside_any_other(
    verdict: Verdict | None,
) -> None:
    found = shortcomings(ending(swap(), swap(verdict)))
    assert len(found) == 1
    assert "linear stayed" in found[0]


def test_a_swap_that_stayed_although_the_interval_says_slower_is_a_failure_whatever_was_said() -> (
    None
):
    found = shortcomings(ending(swap(), swap(Verdict.HELPS, effect=0.2)))
    assert found == ("linear stayed, and the server is slower with it",)


def test_an_experiment_s_claim_does_not_stand_for_a_gain_of_the_server() -> None:
    found = shortcomings(ending(withdrawn(Verdict.NO_MEASURABLE_EFFECT, claimed=7.5)))
    assert found == ("no swap is proven to help the server",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"ok": 8, "failed": 1}, "1 of 9 requests failed"),
        ({"sent": 0, "ok": 0}, "0 of 0 requests failed"),
        ({"fault_reverted": False}, "the fault was not rolled back"),
    ],
)
def test_requests_and_the_fault_count_as_before(more: dict[str, Any], says: str) -> None:
    assert shortcomings(ending(swap(), **more)) == (says,)


def test_without_a_swap_nothing_was_shown() -> None:
    for plot in Plot:
        assert "no kernel was swapped" in shortcomings(ending(plot=plot))


def test_the_harmful_story_ends_well_only_if_the_proof_found_harm_and_took_the_swap_back() -> None:
    assert shortcomings(ending(withdrawn(), plot=Plot.HARMFUL)) == ()
    others = (withdrawn(Verdict.NO_MEASURABLE_EFFECT), withdrawn(Verdict.NOT_CONCLUDED))
    assert shortcomings(ending(withdrawn(), *others, plot=Plot.HARMFUL)) == ()


@pytest.mark.parametrize(
    "swaps",
    [
        (withdrawn(Verdict.NO_MEASURABLE_EFFECT),),
        (withdrawn(Verdict.NOT_CONCLUDED),),
        (withdrawn(claimed=1.0),),
        (swap(Verdict.HARMS),),
        (swap(Verdict.HARMS, kept=False),),
        (swap(Verdict.HELPS),),
        (withdrawn(), swap(Verdict.HELPS)),
        (withdrawn(), swap(Verdict.HARMS)),
        (withdrawn(), swap(None)),
    ],
    ids=str,
)
def test_the_harmful_story_fails_otherwise(swaps: tuple[EndedSwap, ...]) -> None:
    assert shortcomings(ending(*swaps, plot=Plot.HARMFUL))


@given(
    st.lists(
        st.builds(
            swap,
            st.none() | st.sampled_from(Verdict),
            effect=st.floats(-0.5, 0.5),
            kept=st.booleans(),
            back=st.booleans(),
        ),
        max_size=4,
    ),
    st.sampled_from(Plot),
)
def test_no_run_passes_with_a_swap_in_force_that_is_slower_or_not_proven(
    swaps: list[EndedSwap], plot: Plot
) -> None:
    if shortcomings(ending(*swaps, plot=plot)):
        return
    for each in swaps:
        if each.kept:
            assert plot is Plot.HELPFUL
            assert each.report is not None
            assert each.report.verdict is Verdict.HELPS
            assert each.report.low is not None
            assert each.report.low <= 0.0


def told(verdict: Verdict, *, kept: bool, back: bool, plot: Plot) -> dict[str, Any]:
    """What `Story.run` returns of a run with one swap, as far as it counts."""
    return {
        "plot": str(plot),
        "requests": {"sent": 9, "ok": 9, "failed": 0},
        "swaps": [
            {
                "kernel": "linear",
                "speedup": {"lower": 3.03, "point": 3.2, "upper": 3.4, "confidence": 0.99},
                "live_proof": live_proof_of(reported(verdict), confidence=0.99),
                "kept": kept,
                "rolled_back": back,
            }
        ],
        "rollback": {"reverted": True} if plot is Plot.HELPFUL else {},
    }


def test_a_daemon_that_ignores_its_verdict_turns_both_stories_red() -> None:
    """The demo of an H200, rebuilt: proven 3 times as fast, the server slower, the swap kept."""
    for plot in Plot:
        honest = told(Verdict.HARMS, kept=False, back=True, plot=plot)
        ignored = told(Verdict.HARMS, kept=True, back=False, plot=plot)
        found = shortcomings(Ending.of(ignored))
        assert "linear stayed, and the server is slower with it" in found
        assert not any("stayed" in each for each in shortcomings(Ending.of(honest)))
    assert shortcomings(Ending.of(honest)) == ()


def test_a_live_proof_is_told_as_a_speedup_of_the_server() -> None:
    body = live_proof_of(reported(Verdict.HELPS, -0.1), confidence=0.99)
    assert body["speedup"]["lower"] < body["speedup"]["point"] < body["speedup"]["upper"]
    assert body["speedup"]["lower"] == pytest.approx(1.0942, abs=1e-4)
    assert body["sentence"].startswith("helps (faster): steps take 9.5 % less time")
    bare = ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.INTERRUPTED)
    ends = live_proof_of(bare, confidence=0.99)["speedup"]
    assert ends == {"lower": None, "point": None, "upper": None, "confidence": 0.99}
