"""Distance of tunables to the roof: accounts computed by hand, bounds, and untrusted numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.report import survey_samples as samples
from tests.report.test_report_pages import harmless

from retuned.lab.physics import CARD_PEAKS, roof_us
from retuned.report.pages import survey_page
from retuned.report.survey import PastResult, survey_of
from retuned.report.survey_records import REMARKS, ROOF_REASONS, Gain, Roof, Survey, SurveyedTunable
from retuned.report.survey_roof import (
    SLACK,
    Account,
    account_of,
    beyond,
    card_of,
    partial,
    roof_of,
    sampled_steps,
    traced_account,
    whole,
)
from retuned.report.survey_text import survey_text

ROOT = Path(__file__).resolve().parents[2]
H200 = "NVIDIA H200"
LLAMA: samples.Json = {
    "query_heads": 32,
    "kv_heads": 4,
    "head_size": 64,
    "block_size": 16,
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "window": [-1, -1],
    "softcap": False,
    "sinks": False,
}
PREFILL = {"rows": 8192, "sequences": 1, "decode": 0, "longest": 8192}
DECODE = {"rows": 16, "sequences": 16, "decode": 1, "longest": 8192}
EXPERTS: samples.Json = {
    "E": 512,
    "N": 128,
    "K": 2048,
    "top_k": 10,
    "dtype": "fp8_w8a8",
    "block_shape": [128, 128],
}


def attention(axes: dict[str, int], **geometry: object) -> Account | None:
    return account_of({"family": "attention", "geometry": LLAMA | geometry}, axes, alone=True)


def experts(tokens: int, *, alone: bool = True, **geometry: object) -> Account | None:
    report = {"family": "moe", "geometry": EXPERTS | geometry}
    return account_of(report, {"tokens": tokens}, alone=alone)


def known(account: Account | None) -> Account:
    assert account is not None
    return account


def answer(*reports: samples.Json, card: str = H200) -> samples.Json:
    body = samples.answer(*reports)
    body["environment"]["device"] = {"index": 0, "name": card, "uuid": "", "memory_free_bytes": 1}
    return body


def attending(*keys: samples.Json, **fields: Any) -> samples.Json:
    fields = {"geometry": dict(LLAMA)} | fields
    return samples.report("kernel_unified_attention", keys, family="attention", **fields)


def asked(axes: dict[str, int], each_us: float) -> samples.Json:
    return samples.asked("literal", axes=dict(axes), timed=10, timed_us=10 * each_us)


def only(found: Survey) -> SurveyedTunable:
    (row,) = found.tunables
    return row


# --- accounts by hand -----------------------------------------------------------------------------


def test_the_account_of_one_prompt() -> None:
    found = known(attention(PREFILL))
    # most: 8,192 rows of one prompt see 1 + 2 + ... + 8,192 keys; a pair is two products with
    # their sums over 64 elements, in 32 heads
    assert found.most.operations == 8192 * 8193 // 2 * 32 * 64 * 4 == 274_911_461_376
    # keys and values once, and queries and outputs once
    keys, queries = 2 * 8192 * 4 * 64 * 2, 2 * 8192 * 32 * 64 * 2
    assert found.most.moved_bytes == keys + queries == 8_388_608 + 67_108_864
    # least: the class of 8,192 begins at 4,097; all keys are new, so they may be in the cache
    assert found.least.operations == 4097 * 4098 // 2 * 32 * 64 * 4 == 68_769_816_576
    assert found.least.moved_bytes == 0
    assert found.least.operand_bytes == found.most.operand_bytes == 2


def test_the_roof_of_one_prompt_is_that_of_the_matrix_units() -> None:
    roof = roof_of(attention(PREFILL), card=H200, each_us=4831.0)
    # 989e12 operations a second: 68.77e9 need 69.535 us, 274.9e9 need 277.969 us
    assert (roof.low_us, roof.high_us) == (69.535, 277.969)
    assert (roof.low, roof.high) == (round(69.535 / 4831, 4), round(277.969 / 4831, 4))
    assert (roof.low, roof.high) == (0.0144, 0.0575)
    assert (roof.each_us, roof.reason) == (4831.0, "")


def test_the_account_of_a_decode_step() -> None:
    found = known(attention(DECODE))
    key_bytes = 2 * 4 * 64 * 2  # key and value, 4 heads, 64 elements, 2 bytes
    # most: 16 sequences of 8,192 keys, and 16 rows of queries and outputs
    assert found.most.moved_bytes == 16 * 8192 * key_bytes + 2 * 16 * 32 * 64 * 2 == 134_348_800
    assert found.most.operations == 16 * 8192 * 32 * 64 * 4
    # least: 9 sequences, one of 4,097 keys, one of them new; the others have their own key alone
    assert found.least.moved_bytes == 4096 * key_bytes == 4_194_304
    assert found.least.operations == (4097 + 8) * 32 * 64 * 4


def test_the_roof_of_a_decode_step_is_that_of_the_memory() -> None:
    roof = roof_of(attention(DECODE), card=H200, each_us=161.0)
    # 4.8e12 bytes a second: 4,194,304 need 0.874 us, 134,348,800 need 27.989 us
    assert (roof.low_us, roof.high_us) == (0.874, 27.989)
    assert (roof.low, roof.high) == (0.0054, 0.1738)


def test_a_chunk_of_a_long_prompt_sees_the_keys_before_it() -> None:
    found = known(attention({"rows": 1, "sequences": 1, "decode": 0, "longest": 2}))
    assert found.least.operations == found.most.operations == 2 * 32 * 64 * 4  # both ends are 2
    found = known(attention({"rows": 2, "sequences": 1, "decode": 0, "longest": 8}))
    # rows 7 and 8 of 8 keys see 7 and 8; at the least, rows 4 and 5 of 5 keys
    assert found.most.operations == (7 + 8) * 32 * 64 * 4
    assert found.least.operations == (4 + 5) * 32 * 64 * 4


def test_several_prompts_are_counted_at_even_and_at_longest_lengths() -> None:
    found = known(attention({"rows": 8, "sequences": 4, "decode": 0, "longest": 4}))
    # most: 4 sequences with 2 rows each at the end of 4 keys: 4 * (3 + 4)
    assert found.most.operations == 28 * 32 * 64 * 4
    # least: 5 rows over 4 sequences: 3 * 1 + (1 + 2) = 6; or the longest's 3 and 4 others: 7
    assert found.least.operations == 7 * 32 * 64 * 4


def test_a_window_limits_what_a_row_sees() -> None:
    found = known(attention(DECODE, window=[127, 0]))
    key_bytes = 2 * 4 * 64 * 2
    assert found.most.moved_bytes == 16 * 128 * key_bytes + 2 * 16 * 32 * 64 * 2
    assert found.least.moved_bytes == 127 * key_bytes
    assert found.most.operations == 16 * 128 * 32 * 64 * 4
    found = known(attention({"rows": 8, "sequences": 1, "decode": 0, "longest": 8}, window=[1, 0]))
    # 8 rows see 1, 2, 2, ...; at the least 5 rows of 5 keys
    assert found.most.operations == 15 * 32 * 64 * 4
    assert found.least.operations == 9 * 32 * 64 * 4


def test_types_count_with_their_bytes() -> None:
    found = known(attention(DECODE, kv_dtype="float8_e4m3fn"))
    assert found.least.moved_bytes == 4096 * 2 * 4 * 64
    assert found.least.operand_bytes == 2
    assert known(attention(DECODE, dtype="float32")).most.operand_bytes == 4


def test_the_account_of_a_layer_of_experts() -> None:
    found = known(experts(1024))
    # most: 1,024 tokens can choose all 512 experts: three matrices of 128 x 2,048 bytes each, and
    # activations of two bytes in and out
    assert found.most.moved_bytes == 512 * 3 * 128 * 2048 + 2 * 1024 * 2048 * 2 == 411_041_792
    assert found.most.operations == 2 * 1024 * 10 * 3 * 128 * 2048
    # least: 513 tokens choose the same 10 experts; the first product has no gate
    assert found.least.moved_bytes == 10 * 2 * 128 * 2048 == 5_242_880
    assert found.least.operations == 2 * 513 * 10 * 2 * 128 * 2048 == 5_379_194_880
    roof = roof_of(found, card=H200, each_us=241.0)
    # 5.379e9 operations at 1,979e12 a second; 411,041,792 bytes at 4.8e12 a second
    assert (roof.low_us, roof.high_us) == (2.718, 85.634)
    assert (roof.low, roof.high) == (0.0113, 0.3553)


def test_few_tokens_choose_few_experts() -> None:
    found = known(experts(2))
    assert found.most.moved_bytes == 20 * 3 * 128 * 2048 + 2 * 2 * 2048 * 2
    assert found.least.moved_bytes == 10 * 2 * 128 * 2048
    assert known(experts(2, E=4)).least.moved_bytes == 4 * 2 * 128 * 2048


def test_experts_without_a_type_are_of_one_or_two_bytes() -> None:
    found = known(experts(1024, dtype=None))
    assert found.least.moved_bytes == 10 * 2 * 128 * 2048
    assert found.most.moved_bytes == 2 * 512 * 3 * 128 * 2048 + 2 * 1024 * 2048 * 2
    assert (found.least.operand_bytes, found.most.operand_bytes) == (1, 2)
    assert known(experts(8, dtype="int8_w8a16")).least.operand_bytes == 2


def test_experts_that_may_be_in_other_processes_are_not_counted_as_certain() -> None:
    least = known(experts(1024, alone=False)).least
    assert (least.moved_bytes, least.operations) == (0, 0)
    one = samples.moe("default", tokens=1024)
    row = only(survey_of(reports={"7": answer(one), "8": answer(one)}))
    assert row.roof.low == 0.0
    assert row.roof.high is not None
    assert row.roof.high > 0.0


def shapes(**changed: object) -> samples.Json:
    dims = [[1024, 2048], [64, 1536, 2048], [64, 2048, 768], [1024, 8], [1024, 8]]
    names = ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "float", "int"]
    return samples.signature("fused_moe_kernel", 0) | {"dims": dims, "dtypes": names} | changed


def test_the_account_of_experts_in_a_trace_with_shapes() -> None:
    found = known(traced_account("moe", shapes()))
    # the layer: 64 experts of 1,536 x 2,048 and 2,048 x 768 elements of two bytes, and activations;
    # the operator launches the kernel twice
    layer = 64 * 2048 * (1536 + 768) * 2 + 2 * 1024 * 2048 * 2
    assert found.most.moved_bytes == layer // 2 == 306_184_192
    assert found.most.operations == 2 * 1024 * 8 * 2048 * (1536 + 768) // 2
    assert (found.least.moved_bytes, found.least.operations) == (0, 0)
    body = shapes(launches=10, gpu_time_ns=10 * 400_000)
    survey = survey_of(profile={"launches": 10, "signatures": [body]}, card=H200)
    roof = only(survey).asked[0].roof
    # 306,184,192 bytes at 4.8e12 a second need 63.788 us of 400
    assert (roof.low, roof.high, roof.high_us, roof.each_us) == (0.0, 0.1595, 63.788, 400.0)
    assert survey.card == H200


@pytest.mark.parametrize(
    "changed",
    [
        {"dims": []},
        {"dims": [[1024, 2048]]},
        {"dims": [[1024, 2048], [64, 1536, 1024], [64, 2048, 768], [1024, 8], [1024, 8]]},
        {"dims": [[1024, 2048], [32, 1536, 2048], [64, 2048, 768], [1024, 8], [1024, 8]]},
        {"dims": [[1024, 2048], [64, 1536, 2048], [64, 2048, 768], [1024, 8], [512, 8]]},
        {"dims": [[1024, 2048], [64, -1, 2048], [64, 2048, 768], [1024, 8], [1024, 8]]},
        {"dims": [[1024, 2048], [64, True, 2048], [64, 2048, 768], [1024, 8], [1024, 8]]},
        {"dims": "1024", "dtypes": "c10"},
        {"dtypes": ["c10::BFloat16"]},
        {"dtypes": ["x", "y", "z", "float", "int"]},
    ],
)
def test_shapes_that_are_not_those_of_experts_give_no_account(changed: samples.Json) -> None:
    assert traced_account("moe", shapes(**changed)) is None
    assert traced_account("attention", shapes()) is None


def test_an_autotuned_kernel_has_no_account() -> None:
    row = only(survey_of(reports={"7": answer(samples.report())}))
    assert (row.roof.low, row.roof.high, row.roof.reason) == (None, None, "roof-unknown")
    assert row.asked[0].roof.reason == "roof-unknown"


# --- sampled steps --------------------------------------------------------------------------------


def step(queries: list[int], keys: list[int]) -> samples.Json:
    return {"sequences": len(queries), "tokens": sum(queries), "queries": queries, "keys": keys}


def test_sampled_steps_give_the_distance_of_their_exact_lengths() -> None:
    body = answer(attending(asked(DECODE, 161.0), asked(PREFILL, 4831.0)))
    even, uneven = step([1] * 16, [8000] * 16), step([1] * 16, [8000] + [1000] * 15)
    other = step([1] * 16, [4000] * 16)  # of another class
    body["steps"]["recent"] = [even, uneven, other, step([8192], [8192])]
    prefill, decode = only(survey_of(reports={"7": body})).asked
    # 128,000 and 23,000 keys of 1,024 bytes, and 16 rows of 8,192 bytes in and out: 27.334 and
    # 4.934 us at 4.8e12 bytes a second
    assert decode.roof.sampled == round((27.334 + 4.934) / 2 / 161, 4) == 0.1002
    assert (decode.roof.low, decode.roof.high) == (0.0054, 0.1738)
    # the whole prompt is the most work of its class
    assert prefill.roof.sampled == prefill.roof.high == 0.0575


def test_a_chunk_of_a_sampled_step_sees_its_window() -> None:
    steps = sampled_steps([{"steps": {"recent": [step([2, 3], [6, 3])]}}])
    axes = {"rows": 8, "sequences": 2, "decode": 0, "longest": 8}
    report = {"family": "attention", "geometry": LLAMA | {"window": [3, 0]}}
    (work,) = known(account_of(report, axes, alone=True, steps=steps)).sampled
    # rows see 4 and 4, and 1, 2 and 3 keys; they touch 5 keys and 3 keys
    assert work.operations == (4 + 4 + 1 + 2 + 3) * 32 * 64 * 4
    assert work.moved_bytes == (5 + 3) * 2 * 4 * 64 * 2 + 5 * 2 * 32 * 64 * 2


@pytest.mark.parametrize(
    "body",
    [
        step([1] * 300, [9] * 300),
        step([1, 1], [9]),
        step([9], [1]),
        step([0], [1]),
        step([], []),
        step([1], [9]) | {"sequences": 2},
        step([1], [9]) | {"keys": "9"},
        step([1], [9]) | {"keys": None},
        {"sequences": 1, "queries": [True], "keys": [9]},
        {"sequences": 1, "queries": [1.0], "keys": [9]},
        {"sequences": 1, "queries": [1], "keys": [2**40]},
    ],
)
def test_steps_that_are_not_whole_are_left_out(body: samples.Json) -> None:
    assert sampled_steps([{"steps": {"recent": [body]}}]) == {}


def test_sampled_steps_are_bounded() -> None:
    many = {"steps": {"recent": [step([1], [9])] * 1000}}
    assert [len(each) for each in sampled_steps([many] * 9).values()] == [64]


# --- properties -----------------------------------------------------------------------------------

powers = st.integers(0, 24).map(lambda n: 2**n)
windows = st.sampled_from([[-1, -1], [0, 0], [127, 0], [4095, 0]])


@given(powers, powers, powers, st.booleans(), windows)
def test_the_least_work_of_attention_is_at_most_the_most(
    rows: int, sequences: int, longest: int, decode: bool, window: list[int]
) -> None:
    axes = {"rows": rows, "sequences": sequences, "decode": int(decode), "longest": longest}
    found = attention(axes, window=window)
    if found is None:
        assert not decode
        assert rows // 2 >= sequences * longest  # no batch has these sizes
        return
    assert 0 <= found.least.moved_bytes <= found.most.moved_bytes
    assert 0 < found.least.operations <= found.most.operations
    for peak in CARD_PEAKS.values():
        assert roof_us(found.least, peak) <= roof_us(found.most, peak)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.sampled_from([[-1, -1], [0, 0], [2, 0]]),
)
def test_every_batch_of_a_key_lies_within_its_account(
    batch: list[tuple[int, int]], window: list[int]
) -> None:
    """Count the pairs and keys of a real batch one by one: (new rows, earlier keys)."""
    wide = window[0] + 1 if window[0] >= 0 else 10**6
    pairs = sum(min(earlier + at, wide) for new, earlier in batch for at in range(1, new + 1))
    keys = sum(min(earlier + new, new + wide - 1) for new, earlier in batch)
    rows, longest = sum(new for new, _ in batch), max(sum(each) for each in batch)
    decode = all(new == 1 for new, _ in batch)
    exact = {"rows": rows, "sequences": len(batch), "decode": int(decode), "longest": longest}
    axes = {n: v if n == "decode" else 1 << (v - 1).bit_length() for n, v in exact.items()}
    found = known(attention(axes, window=window))
    one, key_bytes = 32 * 64 * 4, 2 * 4 * 64 * 2
    assert found.least.operations <= pairs * one <= found.most.operations
    touched = keys * key_bytes + 2 * rows * 32 * 64 * 2
    assert found.least.moved_bytes <= touched <= found.most.moved_bytes
    one_step = step([new for new, _ in batch], [sum(each) for each in batch])
    report = {"family": "attention", "geometry": LLAMA | {"window": window}}
    steps = sampled_steps([{"steps": {"recent": [one_step]}}])
    (work,) = known(account_of(report, axes, alone=True, steps=steps)).sampled
    assert (work.operations, work.moved_bytes) == (pairs * one, touched)


@given(powers, powers, powers, st.booleans(), windows, st.sampled_from(["rows", "longest"]))
def test_more_rows_or_keys_never_lower_the_work_of_attention(
    rows: int, sequences: int, longest: int, decode: bool, window: list[int], more: str
) -> None:
    axes = {"rows": rows, "sequences": sequences, "decode": int(decode), "longest": longest}
    grown = axes | {more: 2 * axes[more]}
    if decode:  # each sequence has one row
        axes["sequences"], grown["sequences"] = axes["rows"], grown["rows"]
    small, large = attention(axes, window=window), attention(grown, window=window)
    if small is not None and large is not None:
        assert small.least.moved_bytes <= large.least.moved_bytes
        assert small.most.moved_bytes <= large.most.moved_bytes
        assert small.least.operations <= large.least.operations
        assert small.most.operations <= large.most.operations


@given(
    powers,
    st.integers(1, 600),
    st.integers(1, 16),
    st.sampled_from([None, "fp8_w8a8", "fp8_w8a16", "int8_w8a16", "float32"]),
    st.booleans(),
)
def test_more_tokens_never_lower_the_work_of_experts(
    tokens: int, number: int, top_k: int, dtype: str | None, alone: bool
) -> None:
    small, large = (
        known(experts(each, E=number, top_k=top_k, dtype=dtype, alone=alone))
        for each in (tokens, 2 * tokens)
    )
    assert small.least.moved_bytes <= large.least.moved_bytes
    assert small.most.moved_bytes < large.most.moved_bytes
    assert small.least.operations <= large.least.operations
    assert small.most.operations < large.most.operations
    for peak in CARD_PEAKS.values():
        assert roof_us(small.least, peak) <= roof_us(small.most, peak)


@given(st.floats(0.001, 1e12), st.sampled_from(sorted(CARD_PEAKS)), powers)
def test_the_ends_of_a_distance_are_in_order_and_at_most_one(
    each_us: float, card: str, tokens: int
) -> None:
    roof = roof_of(experts(tokens), card=card, each_us=each_us)
    if roof.reason:
        assert (roof.low, roof.high, roof.reason) == (None, None, "impossibly-fast")
    else:
        assert roof.low is not None
        assert roof.high is not None
        assert 0.0 <= roof.low <= roof.high <= 1.0


# --- what is unknown ------------------------------------------------------------------------------


@pytest.mark.parametrize("card", ["", "NVIDIA H300", "nvidia h200", "NVIDIA H200 MIG 1g.18gb"])
def test_an_unknown_card_is_never_guessed(card: str) -> None:
    row = only(survey_of(reports={"7": answer(attending(asked(PREFILL, 4831.0)), card=card)}))
    for roof in (row.roof, row.asked[0].roof):
        assert (roof.low, roof.high, roof.low_us, roof.high_us) == (None, None, None, None)
        assert roof.reason == "roof-unknown"


def test_processes_on_different_cards_have_no_card() -> None:
    one = attending(asked(PREFILL, 4831.0))
    both = {"7": answer(one), "8": answer(one, card="NVIDIA L4")}
    assert card_of(list(both.values())) == ""
    assert only(survey_of(reports=both)).roof.reason == "roof-unknown"
    silent = {"7": answer(one), "8": samples.answer(one)}
    assert card_of(list(silent.values())) == ""
    assert card_of([answer(one), samples.answer()]) == H200  # a process without kernels is no rank


@pytest.mark.parametrize("each_us", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_without_a_time_the_roof_is_known_and_the_distance_is_not(each_us: float | None) -> None:
    roof = roof_of(attention(PREFILL), card=H200, each_us=each_us)
    assert (roof.low, roof.high, roof.reason) == (None, None, "time-unknown")
    assert (roof.low_us, roof.high_us, roof.each_us) == (69.535, 277.969, None)


def test_a_key_with_launches_of_no_time_has_no_distance() -> None:
    row = only(survey_of(reports={"7": answer(attending(asked(PREFILL, 0.0)))}))
    assert row.asked[0].roof.reason == row.roof.reason == "time-unknown"


def test_a_time_below_physics_is_a_fault_and_not_a_distance() -> None:
    least = 69.535
    slower = roof_of(attention(PREFILL), card=H200, each_us=SLACK * least + 0.1)
    assert (slower.low, slower.high, slower.reason) == (1.0, 1.0, "")
    faster = roof_of(attention(PREFILL), card=H200, each_us=SLACK * least - 0.1)
    assert (faster.low, faster.high, faster.reason) == (None, None, "impossibly-fast")


@pytest.mark.parametrize("name", ["query_heads", "kv_heads", "head_size", "dtype", "kv_dtype"])
@pytest.mark.parametrize("value", [None, "32", -1, 0, 2**40, 1.5, True, [], {}, float("nan")])
def test_attention_without_a_whole_geometry_has_no_account(name: str, value: object) -> None:
    assert attention(PREFILL, **{name: value}) is None


@pytest.mark.parametrize("window", [None, [], "ab", ["-1"], [1.5], [True], [2**40], 7, {"0": 1}])
def test_a_window_that_is_not_one_gives_no_account(window: object) -> None:
    assert attention(PREFILL, window=window) is None


@pytest.mark.parametrize("name", ["rows", "sequences", "longest"])
def test_launches_beyond_the_counted_classes_have_no_account(name: str) -> None:
    assert attention(PREFILL | {name: 0}) is None
    assert attention(PREFILL | {name: 2**60}) is None
    assert attention({n: v for n, v in PREFILL.items() if n != name}) is None
    assert attention(PREFILL | {"decode": 2}) is None


@pytest.mark.parametrize("name", ["E", "N", "K", "top_k"])
@pytest.mark.parametrize("value", [None, "8", -1, 0, 2**40, 1.5, True, float("inf")])
def test_experts_without_a_whole_geometry_have_no_account(name: str, value: object) -> None:
    report = {"family": "moe", "geometry": EXPERTS | {name: value}}
    assert account_of(report, {"tokens": 64}, alone=True) is None


@pytest.mark.parametrize("dtype", ["int4_w4a16", "w_mxfp4_a_mxfp4", "", 8, [], {}, True])
def test_experts_of_packed_or_unknown_types_have_no_account(dtype: object) -> None:
    assert experts(64, dtype=dtype) is None
    report = {"family": "moe", "geometry": {n: v for n, v in EXPERTS.items() if n != "dtype"}}
    assert account_of(report, {"tokens": 64}, alone=True) is None


@pytest.mark.parametrize(
    "counts",
    [
        {"launches": 1e308, "timed": 0},  # their sum is beyond a float
        {"launches": 1e308, "timed": 1, "timed_us": 1e308},
        {"launches": 0, "timed": 5},  # a time of no launch
        {"launches": 10, "timed": 1e-300, "timed_us": 1e308},
    ],
)
def test_counts_that_no_server_has_give_finite_parts(counts: samples.Json) -> None:
    keys = [asked(PREFILL, 900.0) | counts, asked(DECODE, 100.0) | counts]
    row = only(survey_of(reports={"7": answer(attending(*keys))}))
    for value in (row.share or 0.0, row.gain.expected, *(key.weight for key in row.asked)):
        assert math.isfinite(value)
    assert row.roof.reason in ("", "time-unknown")


NONSENSE = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e308, -1, 0, 2**70, 10**400]),
    st.none() | st.booleans() | st.text(max_size=6),
    st.lists(st.integers(-2, 2**70), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(st.data())
def test_a_report_of_nonsense_never_stops_the_survey(data: st.DataObject) -> None:
    counts = ("launches", "timed", "timed_us", "captured")
    moe = samples.moe("default", tokens=1024)
    body = answer(attending(asked(PREFILL, 4831.0), asked(DECODE, 161.0)), moe)
    for report in body["tunables"]:
        parts = [report["geometry"], *(key["axes"] for key in report["asked"])]
        for part in parts:
            for name in data.draw(st.lists(st.sampled_from(sorted(part)), max_size=2)):
                part[name] = data.draw(NONSENSE)
        for key in report["asked"]:
            for name in data.draw(st.lists(st.sampled_from(counts), max_size=3)):
                key[name] = data.draw(NONSENSE)
    lengths = st.lists(st.integers(-1, 2**33) | NONSENSE, max_size=3)
    recent = st.fixed_dictionaries({"sequences": NONSENSE, "queries": lengths, "keys": lengths})
    body["steps"]["recent"] = data.draw(st.lists(recent, max_size=2))
    body["environment"]["device"] = data.draw(NONSENSE | st.just({"name": H200}))
    found = survey_of(reports={"7": body, "8": answer(attending(asked(PREFILL, 1e300)))})
    text = json.dumps(found.model_dump(mode="json"), allow_nan=False)
    harmless(survey_page(json.loads(text)))
    for row in found.tunables:
        for roof in (row.roof, *(key.roof for key in row.asked)):
            assert roof.sampled is None or not roof.reason
            assert (roof.low is None) == (roof.high is None) == bool(roof.reason)
            assert roof.low is None or 0.0 <= roof.low <= (roof.high or 0.0) <= 1.0


def test_launches_of_a_capture_do_not_have_the_lengths_of_their_key() -> None:
    keys = [asked(DECODE, 161.0) | {"captured": 16}, asked(PREFILL, 4831.0)]
    row = only(survey_of(reports={"7": answer(attending(*keys))}))
    prefill, decode = row.asked
    assert (decode.roof.reason, decode.roof.low_us) == ("roof-unknown", None)
    assert prefill.roof.low == row.roof.low
    assert row.remarks == ("graphs-not-counted", "roof-partial")
    moe = samples.moe("default", tokens=1024)
    moe["asked"][0]["captured"] = 16  # tokens are the shape of the launch itself
    assert only(survey_of(reports={"7": answer(moe)})).roof.reason == ""


# --- a real server --------------------------------------------------------------------------------


def measured(case: str) -> samples.Json:
    """Return what a server on an H200 reported, and what searches measured there."""
    path = ROOT / "benchmarks" / "results" / "vllm_live_h200.json"
    body: samples.Json = json.loads(path.read_text(encoding="utf-8"))["cases"][case]
    return body


@pytest.mark.parametrize("case", ["attention", "moe", "mamba2"])
def test_no_launch_of_a_real_server_is_faster_than_its_roof(case: str) -> None:
    body = measured(case)
    reports = []
    for each in body["asked"]:
        _, family, kernel, _ = each["id"].split(":")
        reports.append(each | {"family": family, "kernel": kernel})
    found = survey_of(reports={"7": answer(*reports, card=body["device"]["name"])})
    keys = [key for row in found.tunables for key in row.asked]
    assert len(keys) >= 10
    expected = {"roof-unknown"} if case == "mamba2" else {"", "roof-unknown"}
    assert {key.roof.reason for key in keys} <= expected
    assert not any("gain-beyond-roof" in row.remarks for row in found.tunables)


@pytest.mark.parametrize("case", ["attention", "moe"])
def test_no_configuration_that_a_search_found_is_faster_than_its_roof(case: str) -> None:
    body = measured(case)
    report = {"family": case, "geometry": body["asked"][0]["geometry"]}
    for search in body["search"]:
        account = account_of(report, search["axes"], alone=True)
        roof = roof_of(account, card=H200, each_us=search["best_us"])
        assert roof.reason == "", search["axes"]
        ratio = search["in_force_us"] / search["best_us"]
        gain = Gain(low=1.0, high=ratio, expected=ratio, source="experiment")
        assert not beyond(roof_of(account, card=H200, each_us=search["in_force_us"]), gain)


# --- over keys, and remarks -----------------------------------------------------------------------


def test_the_distance_of_a_tunable_is_that_of_its_time() -> None:
    keys = [asked(PREFILL, 900.0), asked(DECODE, 100.0)]
    row = only(survey_of(reports={"7": answer(attending(*keys))}))
    # 90 % of the time has 69.535 / 900 to 277.969 / 900, 10 % has 0.874 / 100 to 27.989 / 100
    assert row.roof.low == pytest.approx((69.535 + 0.874) / 1000, abs=1e-4)
    assert row.roof.high == pytest.approx((277.969 + 27.989) / 1000, abs=1e-4)
    assert row.roof.reason == ""
    assert row.remarks == ()


def test_keys_without_a_distance_are_left_out_with_a_remark() -> None:
    other = asked({"rows": 0, "sequences": 0, "decode": 0, "longest": 0}, 500.0)
    row = only(survey_of(reports={"7": answer(attending(asked(PREFILL, 900.0), other))}))
    assert row.roof.low == pytest.approx(69.535 / 900, abs=1e-4)
    assert row.remarks == ("roof-partial",)
    untimed = samples.asked("literal", axes=DECODE, timed=0, timed_us=0.0)
    row = only(survey_of(reports={"7": answer(attending(asked(PREFILL, 900.0), untimed))}))
    assert row.remarks == ("share-partial",)
    assert not partial([(1.0, Roof(reason="roof-unknown"))])
    assert whole([]).reason == "roof-unknown"


def test_the_time_of_a_key_is_the_mean_over_processes() -> None:
    slow = samples.asked("literal", axes=PREFILL, timed=10, timed_us=40_000.0)
    quick = samples.asked("literal", axes=PREFILL, timed=30, timed_us=60_000.0)
    found = survey_of(reports={"7": answer(attending(slow)), "8": answer(attending(quick))})
    assert only(found).asked[0].roof.each_us == 2500.0  # 100,000 us of 40 launches


def test_a_gain_that_physics_forbids_has_a_remark() -> None:
    one = attending(asked(PREFILL, 200.0))
    # the least roof is 69.535 us: 200 us can become 2.88 times as fast, and 0.9 of the roof is
    # needed for a remark, so 3.20 times
    for expected, remarks in ((3.15, ()), (3.25, ("gain-beyond-roof",))):
        past = PastResult(promoted=True, low=2.0, high=4.0, expected=expected, reason="faster")
        row = only(survey_of(reports={"7": answer(one)}, past={one["id"]: past}))
        assert row.remarks == row.asked[0].remarks == remarks


def test_no_gain_is_never_beyond_the_roof() -> None:
    none = Gain(low=1.0, high=1.0, expected=1.0, source="prior")
    roof = roof_of(attention(PREFILL), card=H200, each_us=0.95 * 69.535)
    assert not beyond(roof, none)
    assert beyond(roof, none.model_copy(update={"expected": 1.2}))
    assert not beyond(Roof(reason="roof-unknown"), none.model_copy(update={"expected": 9.0}))


# --- text and page --------------------------------------------------------------------------------


def lines(body: samples.Json) -> list[str]:
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(*survey_text(body), sep="\n")
    return captured.get().splitlines()


def whole_body() -> samples.Json:
    keys = (asked(PREFILL, 200.0), asked(DECODE, 161.0))
    reports = {"7": answer(attending(*keys), samples.report())}
    reports["7"]["steps"]["recent"] = [step([1] * 16, [8000] * 16)]
    found = survey_of(reports=reports)
    return found.model_dump(mode="json") | {"files": [], "unread": [], "unanswered": []}


def test_the_text_fits_into_100_columns_and_shows_each_distance_whole() -> None:
    found = lines(whole_body())
    assert all(len(line) <= 100 for line in found)
    at = next(n for n, line in enumerate(found) if H200 in line)
    table = "\n".join(found[at:])
    for text in (
        "34.8 % to 100.0 %",
        "0.5 % to 17.4 %",
        "sampled",
        "69.5 \N{MICRO SIGN}s to 278 \N{MICRO SIGN}s",
    ):
        assert text in table, text
    assert "roof-unknown" in table
    assert ROOF_REASONS["roof-unknown"].split(",")[0] in table
    assert REMARKS["gain-beyond-roof"].split(",")[0] in "\n".join(found)


def test_the_page_shows_each_distance_and_its_reason() -> None:
    page = survey_page(whole_body())
    harmless(page)
    distances = ("0.5 % to 17.4 %", "sampled 17.0 %")
    for text in (*distances, "roof-unknown", "gain-beyond-roof", H200):
        assert text in page, text
