from __future__ import annotations

import io
import re
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from retuned.report import story
from retuned.report.text import analyze_text, demo_text, diff_text

HOSTILE = "[bold red]gemm[/]\x1b]0;owned\x07\x1b[2J\u202e<script>"


def rendered(parts: list[RenderableType], *, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    for part in parts:
        console.print(part)
    return out.getvalue()


def poisoned(data: object, text: str) -> Any:
    if isinstance(data, dict):
        return {key: poisoned(value, text) for key, value in data.items()}
    if isinstance(data, list):
        return [poisoned(entry, text) for entry in data]
    return text if isinstance(data, str) else data


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_demo_fits_one_terminal_page(width: int, samples: ModuleType) -> None:
    data = samples.demo()
    data["experiments"] = [samples.experiment(f"kernel_{i}") for i in range(9)]
    for entry in data["experiments"]:
        entry["findings"] = entry["findings"] * 6
    data["swaps"], data["proposals"] = data["swaps"] * 7, data["proposals"] * 7
    lines = rendered(demo_text(data, width=width), width=width).splitlines()
    assert len(lines) <= 60
    assert max(cell_len(line) for line in lines) <= width


def test_the_page_names_the_winner_why_others_lost_and_what_it_brought(
    samples: ModuleType,
) -> None:
    page = rendered(demo_text(samples.demo(), width=140), width=140)
    for said in (
        "panels-32.u4.t1",
        "promoted",
        "wrong-output",
        "compile-failed",
        "reverted 310 ms later",
        "1,204 requests were sent, none failed.",
        "linear_w8a32_n1024_k1024, claimed 3.38\N{MULTIPLICATION SIGN}, kept",
        "helps (stated): steps take 12.0 % less time; 9 pairs",
    ):
        assert said in page


def test_the_largest_failure_is_not_hidden(samples: ModuleType) -> None:
    data = samples.demo()
    data["requests"]["failed"] = 2
    data["rollback"]["reverted"] = False
    page = rendered(demo_text(data, width=100))
    assert "2 failed." in page
    assert "NOT reverted" in page


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60) | st.just(HOSTILE))
def test_names_never_steer_the_terminal(text: str, samples: ModuleType) -> None:
    pages = (
        demo_text(poisoned(samples.demo(), text), width=100),
        analyze_text(poisoned(samples.analyze(), text), top=5),
        diff_text(poisoned(samples.diff(), text)),
    )
    for parts in pages:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", rendered(parts))


def test_markup_in_a_name_is_shown_and_not_obeyed(samples: ModuleType) -> None:
    page = rendered(analyze_text(poisoned(samples.analyze(), "[bold]k[/bold]"), top=3))
    assert "[bold]k[/bold]" in page


def test_analyze_lists_the_largest_kernels_and_counts_the_rest(samples: ModuleType) -> None:
    page = rendered(analyze_text(samples.analyze(), top=3), width=140)
    assert "and 29 more kernels" in page
    assert "truncated-gzip" in page
    assert page.index("Cijk_Ailk") < page.index("fused_moe_kernel")
    assert "topk_softmax" not in page


def test_diff_says_what_is_new_and_what_is_gone(samples: ModuleType) -> None:
    page = rendered(diff_text(samples.diff()), width=120)
    assert "new: 1 signature, 9.0 % of kernel time" in page
    assert "gone: 1 signature, 7.4 % of kernel time" in page
    assert "share-changed" in page


@pytest.mark.parametrize("broken", [{}, {"profile": None, "files": None}, {"drift": None}])
def test_empty_data_still_gives_a_page(broken: dict[str, Any]) -> None:
    assert rendered(analyze_text(broken, top=3)).strip()
    assert rendered(diff_text(broken)).strip()
    assert rendered(demo_text(broken, width=100)).strip()


def swapped(samples: ModuleType, **more: Any) -> dict[str, Any]:
    return {**samples.demo()["swaps"][0], **more}


def test_a_claim_that_holds_one_and_a_proof_without_an_effect_claim_nothing(
    samples: ModuleType,
) -> None:
    data = samples.demo()
    proof = samples.live_proof("no-measurable-effect", 1.001)
    data["experiments"][0]["candidates"] = 1
    data["swaps"] = [swapped(samples, speedup=samples.interval(1.01), live_proof=proof, kept=False)]
    page = rendered(demo_text(data, width=140), width=140)
    assert "1 candidate," in page
    assert "No difference shown: " in page
    assert "Proven 3" not in page
    assert "proven faster" not in page
    assert "was swapped in while serving; no live proof showed a gain of the server." in page
    assert "claimed 1.010\N{MULTIPLICATION SIGN}, rolled back" in page


@pytest.mark.parametrize(
    ("kept", "back", "says"),
    [
        (False, True, "1 swap that made the server slower was rolled back"),
        (True, False, "1 swap that made the server slower was NOT rolled back"),
    ],
)
def test_a_swap_that_harmed_the_server_is_in_the_headline(
    samples: ModuleType, kept: bool, back: bool, says: str
) -> None:
    proof = samples.live_proof("harms", 0.8)
    data = samples.demo()
    data["swaps"] = [swapped(samples, live_proof=proof, kept=kept, rolled_back=back)]
    assert says in story.headline(data)
    assert "helps" not in story.headline(data)


def test_the_headline_says_what_kernels_and_how_many_of_them_help_the_server(
    samples: ModuleType,
) -> None:
    data = samples.demo()
    data["swaps"] = [swapped(samples, kernel=name) for name in ("a", "b", "c")]
    data["swaps"][1]["live_proof"] = None
    assert story.headline(data) == (
        "Traffic drifted, and a and 2 more kernels, each proven faster, were swapped in while "
        "serving; live proofs showed that 2 of 3 help the server."
    )
    assert [proof.fate for proof in story.proofs(data)] == ["kept, rolled back after the fault"] * 3
    assert story.proofs(data)[1].sentence == "no verdict"
    assert len(story.live_ratios(data)) == 2


def test_windows_that_were_not_judged_are_not_drawn_and_it_is_said(samples: ModuleType) -> None:
    data = samples.demo()
    drawn = len(story.windows(data, "distance"))
    data["drift_windows"][0] |= {"distance": 0.0, "skipped": "not-counted"}
    assert len(story.windows(data, "distance")) == drawn - 1
    assert story.unjudged(data) == "1 window not judged, and not drawn"
