"""What a survey concludes from reports of servers and from traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report import survey_samples as samples
from tests.report.test_report_pages import HOSTILE, cuts, harmless, poisoned

from retuned.report.pages import survey_page
from retuned.report.survey import MOST_KEYS, MOST_ROWS, PastResult, survey_of
from retuned.report.survey_features import FEATURE_CODES
from retuned.report.survey_records import REMARKS, Survey, SurveyedTunable
from retuned.report.survey_text import survey_text
from retuned.report.tunable_families import FAMILIES, REASONS, UNKNOWN, WAYS, family_of

ROOT = Path(__file__).resolve().parents[2]


def only(found: Survey) -> SurveyedTunable:
    (row,) = found.tunables
    return row


def test_a_frozen_autotuner_with_much_time_is_worth_a_change() -> None:
    found = survey_of(reports={"7": samples.answer(samples.report())})
    row = only(found)
    assert row.share_source == "server"
    assert row.share == pytest.approx(0.1)
    assert row.resolved == {"frozen": 100}
    assert (row.gain.source, row.gain.low, row.gain.high) == ("prior", 1.0, 1.8)
    assert row.saving == pytest.approx(0.1 * (1 - 1 / 1.3))
    assert [(way.way, way.state) for way in row.ways] == [
        ("next-call", "on"),
        ("recapture", "no-graphs"),
    ]
    assert found.conclusion.code == "gain-expected"


def test_tables_in_force_leave_nothing_to_gain() -> None:
    table = {"state": "engaged"}
    one = samples.report(keys=[samples.asked("table")], table=table)
    found = survey_of(reports={"7": samples.answer(one)})
    assert only(found).table == "engaged"
    assert only(found).saving == 0
    assert found.conclusion.code == "nothing-to-gain"


def test_a_choice_at_the_very_key_leaves_nothing_to_gain() -> None:
    found = survey_of(reports={"7": samples.answer(samples.report(keys=[samples.asked("exact")]))})
    assert found.conclusion.code == "nothing-to-gain"


def test_without_times_the_gain_is_unknown_and_not_zero() -> None:
    keys = [samples.asked(timed=0, timed_us=0.0)]
    found = survey_of(reports={"7": samples.answer(samples.report(keys=keys))})
    assert (only(found).share, only(found).saving) == (None, None)
    assert found.conclusion.code == "gain-unknown"


def test_where_the_host_sets_the_pace_the_last_sentence_says_so() -> None:
    keys = [samples.asked(timed=0, timed_us=0.0, idle=3)]
    found = survey_of(reports={"7": samples.answer(samples.report(keys=keys))})
    assert only(found).share is None
    assert set(only(found).remarks) == {"stream-idle"}
    assert found.conclusion.code == "gain-unknown"
    assert "host" in found.conclusion.sentence
    captured = [keys[0] | {"captured": 4}]
    graphs = survey_of(reports={"7": samples.answer(samples.report(keys=captured))})
    assert "host" not in graphs.conclusion.sentence, "replays do not wait for it"
    timed = survey_of(reports={"7": samples.answer(samples.report(keys=[samples.asked(idle=9)]))})
    assert only(timed).remarks == ()


def test_a_refused_tunable_saves_nothing() -> None:
    one = samples.report(refused="source-unreadable")
    found = survey_of(reports={"7": samples.answer(one)})
    assert only(found).refused == "source-unreadable"
    assert found.expected_saving is None
    assert found.conclusion.code == "nothing-to-gain"


def test_ranks_that_differ_are_named_with_both_configurations() -> None:
    other = samples.report(keys=[samples.asked(config=samples.LARGE)])
    found = survey_of(reports={"7": samples.answer(samples.report()), "8": samples.answer(other)})
    row = only(found)
    assert row.processes == ("7", "8")
    assert set(row.remarks) == {"ranks-differ"}
    (difference,) = row.differences
    assert set(difference.configs) == {"7", "8"}
    assert len(row.asked) == 2


def test_ranks_that_agree_are_one_row() -> None:
    both = {name: samples.answer(samples.report()) for name in ("7", "8")}
    row = only(survey_of(reports=both))
    assert (len(row.asked), row.asked[0].launches) == (1, 200)
    assert row.differences == ()
    assert row.remarks == ()


def test_a_tunable_that_one_process_lacks_is_remarked() -> None:
    answers = {
        "7": samples.answer(samples.report(), samples.report("other")),
        "8": samples.answer(samples.report()),
        "api": samples.answer(),  # no kernels at all: it is not a rank
    }
    rows = {row.kernel: row for row in survey_of(reports=answers).tunables}
    assert rows["other"].remarks == ("not-in-all-processes",)
    assert rows["_chunk_scan_fwd_kernel"].remarks == ()


def test_another_choice_at_another_start_is_shown() -> None:
    earlier = survey_of(reports={"7": samples.answer(samples.report())}).model_dump(mode="json")
    same = survey_of(reports={"9": samples.answer(samples.report())}, before=earlier)
    assert only(same).remarks == ()
    redrawn = samples.report(keys=[samples.asked(config=samples.LARGE)])
    row = only(survey_of(reports={"9": samples.answer(redrawn)}, before=earlier))
    assert row.remarks == ("start-differs",)
    assert set(row.differences[0].configs) == {"before", "now"}
    ours = samples.report(keys=[samples.asked("table", config=samples.LARGE)])
    assert only(survey_of(reports={"9": samples.answer(ours)}, before=earlier)).remarks == ()


def test_captured_launches_make_the_share_a_lower_bound() -> None:
    keys = [samples.asked(captured=4), samples.asked(axes={"elements": 1}, timed=0)]
    row = only(survey_of(reports={"7": samples.answer(samples.report(keys=keys))}))
    assert row.remarks == ("graphs-not-counted", "share-partial")


def test_a_trace_beside_a_server_gives_the_share() -> None:
    found = survey_of(
        reports={"7": samples.answer(samples.report())},
        profile=samples.profile(_chunk_scan_fwd_kernel=300, nvjet_sm90=700),
    )
    assert (only(found).share, only(found).share_source) == (0.3, "trace")
    assert [each.family for each in found.fixed] == ["cublas"]


def test_rows_are_in_the_order_of_share_times_gain() -> None:
    found = survey_of(
        profile=samples.profile(
            _chunk_scan_fwd_kernel=200, kernel_unified_attention=300, fused_moe_kernel=500
        )
    )
    assert [row.kernel for row in found.tunables] == [
        "kernel_unified_attention",
        "_chunk_scan_fwd_kernel",
        "fused_moe_kernel",
    ]


@pytest.mark.parametrize(
    ("how", "tokens", "block", "expected"),
    [
        ("default", 256, True, "gain-expected"),
        ("default", 16, True, "nothing-to-gain"),
        ("default", 8192, True, "nothing-to-gain"),
        ("default", 256, False, "nothing-to-gain"),
        ("nearest", 256, True, "nothing-to-gain"),
    ],
)
def test_experts_gain_where_measurements_found_a_gain(
    how: str, tokens: int, block: bool, expected: str
) -> None:
    one = samples.moe(how, tokens=tokens, block=block)
    found = survey_of(reports={"7": samples.answer(one, busy_s=0.04)})
    assert found.conclusion.code == expected


def test_attention_is_judged_by_its_axes() -> None:
    def gain(**axes: int) -> float:
        keys = [samples.asked("literal", axes=axes)]
        one = samples.report("kernel_unified_attention", keys, family="attention")
        return only(survey_of(reports={"7": samples.answer(one)})).gain.expected

    prefill = gain(rows=8192, sequences=1, decode=0, longest=8192)
    decode = gain(rows=16, sequences=16, decode=1, longest=8192)
    mixed = gain(rows=1088, sequences=64, decode=0, longest=4096)
    assert prefill > decode > mixed > 1


def test_an_experiment_here_replaces_the_prior() -> None:
    one = samples.report()
    won = PastResult(promoted=True, low=1.4, high=1.6, expected=1.5, reason="faster")
    lost = PastResult(promoted=False, low=1.0, high=1.0, expected=1.0, reason="not-faster")
    for past, code in ((won, "gain-expected"), (lost, "nothing-to-gain")):
        found = survey_of(reports={"7": samples.answer(one)}, past={one["id"]: past})
        assert only(found).gain.source == "experiment"
        assert only(found).gain.expected == past.expected
        assert found.conclusion.code == code


def test_what_this_version_cannot_change_is_no_gain() -> None:
    found = survey_of(profile=samples.profile(_lora_shrink_kernel=900, fused_moe_kernel=1))
    assert found.conclusion.code == "gain-out-of-reach"
    assert [(each.family, each.reason) for each in found.fixed] == [("lora", "adapter-missing")]


def test_a_server_of_compiled_kernels_has_nothing_to_gain() -> None:
    found = survey_of(profile=samples.profile(**{"flash::FlashAttnFwdSm90": 8, "nvjet_sm90": 2}))
    assert found.tunables == ()
    assert found.conclusion.code == "nothing-to-gain"


@pytest.mark.parametrize("reports", [{}, {"7": {}}, {"7": samples.answer()}])
def test_nothing_observed_is_not_nothing_to_gain(reports: dict[str, samples.Json]) -> None:
    found = survey_of(reports=reports)
    assert found.conclusion.code == "nothing-observed"


@pytest.mark.parametrize(
    ("attention", "code"),
    [("on", "nothing-to-gain"), ("attention-unknown", "nothing-observed")],
)
def test_a_server_that_stepped_without_a_tunable_has_nothing_to_gain(
    attention: str, code: str
) -> None:
    families = {"autotune": "on", "attention": attention, "moe": "vllm-missing"}
    found = survey_of(reports={"7": samples.answer(families=families)})
    assert found.conclusion.code == code


def test_a_huge_report_is_bounded() -> None:
    keys = [samples.asked(axes={"elements": n}) for n in range(2000)]
    reports = [samples.report(f"kernel_{n}") for n in range(2000)]
    reports[0] = samples.report("kernel_0", keys) | {"kernel": "k" * 100_000}
    found = survey_of(reports={str(n): samples.answer(*reports[:3]) for n in range(2000)})
    assert len(found.processes) == 256
    assert all(len(row.asked) <= MOST_KEYS for row in found.tunables)
    assert only_names(survey_of(reports={"7": samples.answer(*reports)})) == MOST_ROWS
    assert len(found.model_dump_json()) < 4 << 20


def only_names(found: Survey) -> int:
    return len({row.kernel for row in found.tunables})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.lists(st.sampled_from([*samples.report(), *samples.asked()]), max_size=6), JSON)
def test_any_value_in_any_field_is_survived(fields: list[str], value: object) -> None:
    one = samples.report()
    key = one["asked"][0]
    for name in fields:
        (one if name in one else key)[name] = value
    found = survey_of(reports={"7": samples.answer(one)})
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_parts_of_the_runtime_that_found_no_seam_are_named() -> None:
    answer = samples.answer(families={"attention": "attention-unknown", "moe": "on"}, failures=3)
    answer["steps"]["hook"] = "no-step-hook"
    found = survey_of(reports={"7": answer, "8": {"on": False}})
    assert {(each.process, each.part): each.state for each in found.adapters} == {
        ("7", "runtime"): "on",
        ("7", "steps"): "no-step-hook",
        ("7", "attention"): "attention-unknown",
        ("7", "moe"): "on",
        ("8", "runtime"): "tunables-off",
    }
    assert found.adapters[0].failures == 3
    assert found.conclusion.code == "nothing-observed"


# --- features -------------------------------------------------------------------------------------


def states(answer: samples.Json) -> dict[str, str]:
    return {each.code: each.state for each in survey_of(reports={"7": answer}).features}


def test_every_feature_is_listed_whether_or_not_it_is_on() -> None:
    found = states(samples.answer(samples.report()))
    assert tuple(found) == FEATURE_CODES
    assert found["batch-invariant"] == "off"
    assert found["lora-live"] == "off"
    assert found["sleep-mode"] == "unknown"
    assert found["graphs-shared"] == "unknown"  # a server reports no variables of SGLang
    assert found["speculative-decoding"] == "unknown"


def test_features_are_read_from_variables_refusals_and_steps() -> None:
    answer = samples.answer(samples.report(refused="batch-invariant"))
    answer["environment"]["variables"] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    answer["steps"]["recent"] = [{"sequences": 3, "tokens": 9, "queries": [3, 3, 3]}] * 8
    found = states(answer)
    assert found["batch-invariant"] == "refused"
    assert found["lora-live"] == "on"
    assert found["speculative-decoding"] == "suspected"


def test_a_trace_lists_no_features() -> None:
    assert survey_of(profile=samples.profile(fused_moe_kernel=1)).features == ()


# --- families -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("kernel_unified_attention", "attention"),
        ("kernel_unified_attention_2d", "attention-other-version"),
        ("fused_moe_kernel", "moe"),
        ("fused_moe_kernel_gptq_awq", "moe"),
        ("_chunk_state_fwd_kernel", "autotune-ssd"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "autotune-delta"),
        ("_lora_expand_kernel", "lora"),
        ("_selective_scan_update_kernel", "mamba-table"),
        ("_w8a8_triton_block_scaled_mm", "block-product"),
        ("triton_red_fused_add_mean_mul_0", "inductor"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "triton-kernels"),
        ("nvjet_sm90_tst_64x8_64x16_4x2_h_bz_TNT", "cublas"),
        ("Cijk_Alik_Bljk_BBS_BH_MT32x32x256", "hipblaslt"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<1u>()", "deep-gemm"),
        ("void pytorch_flash::flash_fwd_kernel<T>(P)", "flash-attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<T>()", "flashinfer"),
        ("void at::native::reduce_kernel<512, 1>()", "compiled"),
        ("_rms_norm_forward_kernel", "plain"),
        ("a name with spaces", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_name_decides_on_its_family(kernel: str, family: str) -> None:
    assert family_of(kernel).name == family


@given(st.text(max_size=200) | st.sampled_from(["a" * 10**6, "_" * 10**5, "::" * 10**5]))
def test_any_name_has_a_family_soon(kernel: str) -> None:
    assert family_of(kernel) in (*FAMILIES, UNKNOWN)


def test_a_family_is_changeable_or_has_a_reason() -> None:
    for family in (*FAMILIES, UNKNOWN):
        assert family.live or family.reason in REASONS
        assert set(family.reach) <= set(WAYS)
        assert not family.live or "next-call" in family.reach
        prior = family.prior
        assert prior is None or 1 <= prior.low <= prior.expected <= prior.high


def test_the_page_and_the_table_of_families_agree() -> None:
    page = (ROOT / "docs" / "tunables.md").read_text(encoding="utf-8")
    table = page.partition("## Families")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    written = {name: (title, live, seam) for name, title, live, seam in rows}
    assert written == {
        each.name: (
            each.title,
            f"yes: {', '.join(each.reach)}" if each.live else f"`{each.reason}`",
            each.seam or "none that Python reaches",
        )
        for each in FAMILIES
    }
    for code in (*REASONS, *REMARKS, *FEATURE_CODES):
        assert f"`{code}`" in page, code


# --- rendering ------------------------------------------------------------------------------------


def whole() -> samples.Json:
    other = samples.report(keys=[samples.asked(config=samples.LARGE, captured=2)])
    answers = {"7": samples.answer(samples.report()), "8": samples.answer(other)}
    found = survey_of(
        reports=answers, profile=samples.profile(nvjet_sm90=70, _lora_shrink_kernel=9)
    )
    return found.model_dump(mode="json") | {"files": [], "unread": [], "unanswered": []}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_the_page_stays_text(text: str) -> None:
    html = survey_page(poisoned(whole(), text))  # type: ignore[arg-type]
    harmless(html)
    html.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", html)


def test_the_page_and_the_text_survive_any_missing_key() -> None:
    for cut in cuts(whole()):
        harmless(survey_page(cut))  # type: ignore[arg-type]
        assert survey_text(cut)  # type: ignore[arg-type]


def test_the_page_of_nothing_is_whole() -> None:
    harmless(survey_page({}))
