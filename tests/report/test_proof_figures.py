"""Pictures and compact text of a live proof."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.test_report_plots import SVG, parsed, texts
from tests.stages.watch_proof.blocks import Run, proven, slower

from retuned.report.live_proof import compact_lines
from retuned.report.proof_figures import (
    account_plot,
    dots_of,
    proof_figures,
    reach_of,
    shown_kernels,
)
from retuned.stages.watch.proof import (
    KernelTime,
    PairAbandoned,
    ProofSettings,
    ProofState,
    Verdict,
    course,
    next_pair,
    step,
)

WIDTHS = (358.0, 920.0)


def pictures(state: ProofState) -> list[list[str]]:
    """Check every picture of a proof; return the texts of the wide ones."""
    found = proof_figures(state)
    for one in found:
        assert one.caption
        for width, markup in zip(WIDTHS, (one.narrow, one.wide), strict=True):
            root = parsed(str(markup), width=width)
            desc = root.find(f"{SVG}desc")
            assert desc is not None
            assert any(each.isdigit() for each in desc.text or ""), "the numbers as text"
    return [texts(parsed(str(one.wide))) for one in found]


def test_a_proof_has_pairs_evidence_and_account() -> None:
    state = proven(0.97, busy=0.006)
    pairs, evidence, account = pictures(state)
    assert "% of step time" in pairs
    assert {"faster", "slower", "none", "E; bound 100"} <= set(evidence)
    assert {"GPU busy", "gap", "step"} <= set(account)
    root = parsed(str(proof_figures(state)[0].wide))
    circles = [node for node in root.iter(f"{SVG}circle")]
    sham = [node for node in circles if node.get("class") == "dot-open"]
    assert (len(sham), len(circles)) == (30, len(state.pairs))


def test_before_the_first_pair_there_are_sham_pairs_alone() -> None:
    run = Run()
    assert proof_figures(run.state) == ()
    assert compact_lines(run.state) == []
    state = run.pilot()
    assert len(pictures(state)) == 1
    assert [name for name, _ in compact_lines(state)] == ["d %", "sham"]


def test_void_pairs_are_not_drawn() -> None:
    run = Run()
    run.pilot()
    before = dots_of(run.state)
    state = next_pair(run.state, random.Random(1))
    assert state.plan is not None
    state = step(state, PairAbandoned(state.plan.number, at_s=run.now_s))
    assert len(state.pairs) == 31
    assert dots_of(state) == before


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.97, Verdict.HELPS), (1.03, Verdict.HARMS), (1.0, Verdict.NO_MEASURABLE_EFFECT)],
)
def test_the_course_ends_where_the_verdict_was_proven(ratio: float, verdict: Verdict) -> None:
    state = proven(ratio)
    assert state.report is not None
    assert state.report.verdict is verdict
    points = course(state)
    assert points[0].pairs == 0
    assert [point.pairs for point in points] == sorted({point.pairs for point in points})
    last = points[-1]
    assert last.pairs == state.report.pairs
    assert last.towards(verdict) >= state.settings.log_bound
    assert last.faster == pytest.approx(state.report.evidence.faster)
    assert last.slower == pytest.approx(state.report.evidence.slower)
    assert (last.low, last.high) == (state.report.low, state.report.high)


def test_long_blocks_are_told_apart() -> None:
    settings = ProofSettings(long_blocks=6)
    state = Run(settings).until_done(slower(-0.03))
    assert "blocks are long" in proof_figures(state)[1].caption
    assert course(state)[-1].pairs == len(state.pairs) - 30


def test_the_compact_lines_are_those_of_the_pictures() -> None:
    state = proven(1.03, busy=0.006)
    lines = dict(compact_lines(state))
    assert list(lines) == ["d %", "sham", "pairs", "E", "per step"]
    assert lines["E"].startswith("1 -> ")
    assert lines["E"].endswith("bound 100")
    assert "GPU busy +" in lines["per step"]
    width = len(lines["d %"])
    assert len(lines["sham"]) == len(lines["pairs"][:width]) == width
    marks = set(lines["sham"])
    assert marks <= set(" .:|#")
    right, left = lines["pairs"][:width][width // 2 + 1 :], lines["pairs"][: width // 2]
    assert len(right.replace(" ", "")) > len(left.replace(" ", "")), "slower is on the right"


def test_the_kernel_in_place_is_shown_where_it_was_timed() -> None:
    state = proven(0.97, busy=0.006)
    assert state.report is not None
    kernels = (
        KernelTime(lengths=(512, 7), launches=8.0, off_s=2.4e-3, on_s=1.2e-3),
        KernelTime(lengths=(3,), launches=0.1),
        KernelTime(lengths=(9,), launches=0.1, off_s=5e-6),
    )
    account = state.report.account.model_copy(update={"kernels": kernels})
    report = state.report.model_copy(update={"account": account})
    shown = state.model_copy(update={"report": report})
    lines = [line for name, line in compact_lines(shown) if name == "in place"]
    assert len(lines) == 1, "only there both arms were timed"
    assert all(part in lines[0] for part in ("512 x 7", "2,400 us", "1,200 us", "2.00x", "8 "))
    captions = " ".join(each.caption for each in proof_figures(shown))
    assert all(line in captions for line in lines)
    one_arm = account.model_copy(update={"kernels": kernels[1:]})
    assert [k.lengths for k in shown_kernels(one_arm)] == [(9,)], "nothing is known at 3"


@given(
    parts=st.lists(st.tuples(st.text(max_size=20), st.floats(-1e6, 1e6)), min_size=1, max_size=5)
)
def test_an_account_is_well_formed_for_any_data(parts: list[tuple[str, float]]) -> None:
    for width in WIDTHS:
        parsed(account_plot(parts, desc="1", width=width), width=width)


def test_nearly_all_pairs_lie_within_the_picture() -> None:
    dots = dots_of(proven(0.97))
    reach = reach_of(dots)
    assert sum(abs(dot.percent) <= reach for dot in dots) >= math.floor(0.95 * len(dots))
    assert reach_of([]) == 1.0
