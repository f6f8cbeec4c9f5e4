"""Tuned-config files are read strictly and written byte for byte; small files made up for this.

What the tests rest on was read on 2026-11-22 in vLLM 0.33.0, SGLang 0.5.23, PyTorch 2.15.0 and in
AITER's public repository: keys are batch sizes as text; vLLM takes ``triton_version`` out of the
object and SGLang does not; values are whole numbers, words, and SGLang's ``USE_TMA`` true or false;
files are indented by 2 or 4, with or without an end of line. AITER's tables start with a header
whose columns differ; PyTorch's results start with ``Validator`` lines.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.changes import Change, parse_change, plan
from retuned.runtime.tuned_files.moe_json import read_moe, write_moe
from retuned.runtime.tuned_files.strict import MAX_FILE_BYTES
from retuned.runtime.tuned_files.table_formats import (
    new_row,
    plan_results,
    read_results,
    read_table,
    write_table,
)

MOE = """{
    "triton_version": "3.9.0",
    "1": {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "num_warps": 4
    },
    "64": {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 128,
        "num_warps": 8
    }
}
"""
GEMM = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName\n"
    "gfx950,256,16,512,256,False,torch.bfloat16,torch.bfloat16,False,False,hipblaslt,7,0,4.5,k_a\n"
    "gfx950,256,64,512,256,False,torch.bfloat16,torch.bfloat16,False,False,asm,9,2,6.25,k_b\n"
)
EXPERTS = (
    "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
    "use_g1u1,doweight_stage1,block_m,ksplit,kernelName1,kernelName2,us,strange column\n"
    "256,32,512,256,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
    "QuantType.per_1x128,1,0,32,0,k1,k2,10.5,x y\n"
)
RESULTS = (
    "Validator,PT_VERSION,2.15.0\nValidator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    "GemmTunableOp_BFloat16_TN,tn_64_16_32_ld_32_32_64,Gemm_Hipblaslt_12,0.5\n"
    "GemmTunableOp_BFloat16_TN,tn_64_32_32_ld_32_32_64,Default\n"
)


def moe(data: str, *, version_key: bool = True) -> bytes:
    file = read_moe("x.json", data.encode(), version_key=version_key)
    return write_moe(file, file.rows)


@pytest.mark.parametrize(
    "text",
    [
        MOE,
        MOE.rstrip("\n"),
        MOE.replace("\n", "\r\n"),
        MOE.replace("    ", "\t"),
        json.dumps(json.loads(MOE)),
        json.dumps(json.loads(MOE), separators=(",", ":")),
        ' { "1" : {"BLOCK_SIZE_M" :16 } ,"2":{"BLOCK_SIZE_M":32, "USE_TMA": true}\n}  \n',
    ],
)
def test_a_file_that_is_read_and_written_unchanged_has_the_same_bytes(text: str) -> None:
    assert moe(text) == text.encode()


def test_a_new_row_is_spelt_like_its_neighbours() -> None:
    change = {"format": "moe-vllm", "guard": [[1, 8]], "rows": [{"M": 4, "config": {}}]}
    change["rows"] = [{"M": 4, "config": {"BLOCK_SIZE_M": 32, "num_warps": 2}}]
    text = plan("x.json", MOE.encode(), parse_change(change)).data.decode()
    row = '\n    "4": {\n        "BLOCK_SIZE_M": 32,\n        "num_warps": 2\n    },'
    assert row in text
    kept = MOE[MOE.index('    "64"') :]
    assert text.endswith(kept)
    assert text.startswith('{\n    "triton_version": "3.9.0",\n')
    assert json.loads(text)["9"] == json.loads(MOE)["1"]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([None, 1, 2, 4, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n", "  \n\n"]),
    st.booleans(),
    st.integers(1, 200),
)
def test_rows_that_stay_keep_their_spelling_in_files_of_any_style(
    indent: int | str | None,
    separators: tuple[str, str],
    newline: str,
    tail: str,
    version_last: bool,
    m: int,
) -> None:
    rows = {k: v for k, v in json.loads(MOE).items() if k != "triton_version"}
    body = rows | {"triton_version": "3.9"} if version_last else {"triton_version": "3.9"} | rows
    text = (json.dumps(body, indent=indent, separators=separators) + tail).replace("\n", newline)
    file = read_moe("x.json", text.encode(), version_key=True)
    assert write_moe(file, file.rows) == text.encode()
    row = {"M": m, "config": {"BLOCK_SIZE_M": 256, "num_warps": 2}}
    change = parse_change({"format": "moe-vllm", "guard": [[m, m]], "rows": [row]})
    written = plan("x.json", text.encode(), change).data.decode()
    again = read_moe("x.json", written.encode(), version_key=True)
    assert dict(again.rows)[m] == row["config"]
    assert again.version == "3.9"
    assert written.endswith(tail.replace("\n", newline))
    for member in file.members:
        assert member.text in written or member.key == str(m)
    if indent is not None:
        assert written.count("\r") == (written.count("\n") if newline == "\r\n" else 0)


def test_true_is_not_one() -> None:
    text = '{"1": {"BLOCK_SIZE_M": 16, "USE_TMA": 1}}'
    row = {"M": 1, "config": {"BLOCK_SIZE_M": 16, "USE_TMA": True}}
    body = {"format": "moe-sglang", "guard": [[1, None]], "rows": [row]}
    assert b'"USE_TMA": true' in plan("x.json", text.encode(), parse_change(body)).data


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "beginning of an object"),
        ("[]", "beginning of an object"),
        ("{}", "no row"),
        ('{"triton_version": "3.9.0"}', "no row"),
        (MOE[:-40], "is not JSON|cut off"),
        (MOE + "x", "follows the end"),
        ('{"1": {"BLOCK_SIZE_M": 16}, "1": {"BLOCK_SIZE_M": 32}}', "occurs twice"),
        ('{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_M": 32}}', "names a parameter twice"),
        ('{"1": {"BLOCK_SIZE_M": NaN}}', "NaN"),
        ('{"1": {"BLOCK_SIZE_M": 16.0}}', "not a whole number"),
        ('{"1": {"BLOCK_SIZE_M": -1}}', "not a whole number"),
        ('{"1": {"BLOCK_SIZE_M": ' + "9" * 5000 + "}}", "5000 digits"),
        ('{"1": {"BLOCK_SIZE_M": 4294967296}}', "not a whole number"),
        ('{"1": {"BLOCK_SIZE_M": null}}', "not a whole number"),
        ('{"1": {"a b": 1}}', "not a name of a parameter"),
        ('{"1": {"BLOCK_SIZE_M": "x; y"}}', "not a whole number"),
        ('{"1": []}', "not an object"),
        ('{"1": {}}', "not an object"),
        ('{"01": {"BLOCK_SIZE_M": 1}}', "not a batch size"),
        ('{"1_0": {"BLOCK_SIZE_M": 1}}', "not a batch size"),
        ('{"0": {"BLOCK_SIZE_M": 1}}', "not a batch size"),
        ('{"99999999999": {"BLOCK_SIZE_M": 1}}', "not a batch size"),
        ('{"useful_configs": {"a": 1}}', "not a batch size"),
        ('{"1": ' + "[" * 100_000 + "}", "is not JSON"),
        ('{"1": {"BLOCK_SIZE_M": 1}, }', "is not JSON|not a key"),
        ("{1: {}}", "not a key"),
        ('{"1": {"BLOCK_SIZE_M": 1}}é', "not an ASCII"),
        ('\ufeff{"1": {"BLOCK_SIZE_M": 1}}', "not an ASCII"),
        ('{"1": {"BLOCK_SIZE_M": 1}}\0', "is a zero"),
        (" " * (MAX_FILE_BYTES + 1), "more than"),
        (json.dumps({m: {"BLOCK_SIZE_M": m} for m in range(1, 1100)}), "more than 1024 rows"),
    ],
)
def test_a_hostile_file_is_refused_with_its_name_and_place(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        read_moe("E=8.json", text.encode(), version_key=True)
    assert refused.value.reason == "tuned-invalid"
    assert "E=8.json, " in refused.value.detail
    assert "nothing was changed" in refused.value.detail


def test_a_version_in_a_file_of_sglang_is_refused_because_the_server_would_fail_on_it() -> None:
    with raises_code(Refused, "tuned-invalid", "'triton_version'"):
        moe(MOE, version_key=False)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]":,0123456789 \n-.eatruNBLOCK_SIZEM', max_size=60))
def test_whatever_a_file_holds_it_is_read_or_refused(text: str) -> None:
    for read in (
        lambda data: read_moe("x", data, version_key=True),
        lambda data: read_table("x", data),
        lambda data: read_results("x", data),
    ):
        try:
            read(text.encode())
        except Refused as error:
            assert error.reason == "tuned-invalid"  # noqa: PT017 - or nothing is raised


@pytest.mark.parametrize("text", [GEMM, EXPERTS, GEMM.replace("\n", "\r\n"), GEMM.rstrip("\n")])
def test_a_table_keeps_its_bytes_and_columns_nobody_knows(text: str) -> None:
    table = read_table("x.csv", text.encode())
    assert write_table(table, {}, []) == text.encode()
    assert write_table(table, {0: table.rows[0]}, []) == text.encode()
    row = tuple("77" if i == table.m else cell for i, cell in enumerate(table.rows[0]))
    longer = write_table(table, {}, [row]).decode()
    assert longer.startswith(text)
    assert read_table("x.csv", longer.encode()).rows == (*table.rows, row)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 lines"),
        ("a,b\n1,2\n", "neither M, N, K nor token"),
        (GEMM[:-30], "cells under 15 columns; cut off"),
        (GEMM + "\n", "is empty"),
        (GEMM + GEMM.splitlines()[1].replace("k_a", "k_c") + "\n", "same shape as line 2"),
        (GEMM.replace("k_a", '"k,a"'), "quote"),
        (GEMM.replace(",16,", ",1e2,"), "not a batch size"),
        (GEMM.replace(",16,", ",0,"), "not a batch size"),
        (GEMM.replace("k_a", "k" * 3000), "above 2000 characters"),
        (GEMM.replace("k_a", "k\x1ba"), "control character"),
        (GEMM.replace("gfx,cu_num", "gfx,gfx"), "not a header"),
    ],
)
def test_a_hostile_table_is_refused(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        read_table("bf16.csv", text.encode())


def test_a_whole_row_that_stands_there_twice_is_as_harmless_as_the_server_takes_it() -> None:
    text = GEMM + GEMM.splitlines()[1] + "\n"
    assert len(read_table("x.csv", text.encode()).rows) == 3


@pytest.mark.parametrize(
    ("column", "cell"),
    [("solidx", ""), ("solidx", "7.5"), ("bias", "0"), ("us", "fast"), ("kernelName", "a,b")],
)
def test_a_cell_that_would_change_how_pandas_reads_its_column_is_refused(
    column: str, cell: str
) -> None:
    table = read_table("x.csv", GEMM.encode())
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert new_row(table, cells) == table.rows[0]
    with raises_code(Refused, "row-invalid"):
        new_row(table, cells | {column: cell})
    with raises_code(Refused, "row-invalid"):
        new_row(table, {k: v for k, v in cells.items() if k != column})


def test_an_aiter_change_pins_what_a_coarser_lookup_would_have_drawn_in() -> None:
    table = read_table("x.csv", GEMM.encode())
    cells = dict(zip(table.header, table.rows[1], strict=True)) | {"M": "32", "kernelName": "k_n"}
    body = {"format": "aiter", "guard": [[20, 32]], "rows": [cells], "rule": "fine-then-power"}
    with raises_code(Refused, "default-unknown", "M=17"):
        plan("x.csv", GEMM.encode(), parse_change(body))
    found = plan("x.csv", GEMM.encode(), parse_change(body | {"guard": [[17, 32]]}))
    assert found.data.decode().startswith(GEMM)
    assert found.rows == ("M=32: written",)
    assert found.inside[17]["kernelName"] == "k_n"
    assert found.outside[16]["kernelName"] == "k_a"
    assert found.outside[33] == {
        "libtype": "asm",
        "solidx": "9",
        "splitK": "2",
        "kernelName": "k_b",
    }


def test_results_of_pytorch_are_replaced_in_place_or_added_and_all_else_stays() -> None:
    file = read_results("r.csv", RESULTS.encode())
    key = ("GemmTunableOp_BFloat16_TN", "tn_64_32_32_ld_32_32_64")
    assert file.solutions()[key] == "Default"
    new = [(*key, "Gemm_Hipblaslt_3", "0.25"), ("GemmTunableOp_float_NT", "nt_1_2_3", "G", "1")]
    text = plan_results(file, new).decode()
    assert text == RESULTS.replace("_64,Default", "_64,Gemm_Hipblaslt_3,0.25") + (
        "GemmTunableOp_float_NT,nt_1_2_3,G,1\n"
    )
    assert plan_results(file, [file.rows[0]]) == RESULTS.encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no PT_VERSION"),
        (RESULTS + "\n", "is empty"),
        (RESULTS[:-4], "cut off"),
        (RESULTS.replace("Validator,PT_VERSION,2.15.0\n", ""), "no PT_VERSION"),
        (RESULTS + "Validator,X,1\n", "follows a result"),
        (RESULTS + RESULTS.splitlines()[2] + "\n", "same operator"),
        (RESULTS.replace("0.5", "nan"), "not a time"),
        (RESULTS.replace("Default", "a b"), "not a word"),
        (RESULTS.replace("\n", "\r\n"), "carriage return"),
        (RESULTS + "a,b\n", "has 2 cells"),
    ],
)
def test_hostile_results_are_refused(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        read_results("r.csv", text.encode())


def test_a_result_that_stands_for_many_is_no_result_to_add() -> None:
    file = read_results("r.csv", RESULTS.encode())
    with raises_code(Refused, "row-invalid"):
        plan_results(file, [("GemmTunableOp_float_NT", "nt_*_2_3", "G", "1")])


ROW = {"M": 4, "config": {"BLOCK_SIZE_M": 32}}
GOOD = {"format": "moe-vllm", "guard": [[4, 4]], "rows": [ROW]}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": "yaml"}, "format"),
        ({"rows": []}, "rows"),
        ({"rows": [ROW] * 300}, "rows"),
        ({"guard": None}, "guard"),
        ({"guard": [[4]]}, "guard"),
        ({"guard": [[5, 4]]}, "guard"),
        ({"guard": [[1, 4], [4, 8]]}, "guard"),
        ({"guard": [[0, 4]]}, "guard"),
        ({"guard": [[True, 4]]}, "guard"),
        ({"lookup": []}, "lookup"),
        ({"rule": "guess"}, "rule"),
        ({"defaults": [[1, 2]]}, "defaults"),
    ],
)
def test_a_change_is_checked_field_by_field(fields: dict[str, object], says: str) -> None:
    assert isinstance(parse_change(GOOD), Change)
    with raises_code(Refused, "change-invalid", f"'{says}'"):
        parse_change(GOOD | fields)


def test_a_change_that_is_there_already_changes_nothing() -> None:
    row = {"M": 1, "config": json.loads(MOE)["1"]}
    body = {"format": "moe-vllm", "guard": [[1, 1]], "rows": [row]}
    with raises_code(Refused, "nothing-to-change"):
        plan("x.json", MOE.encode(), parse_change(body))


@pytest.mark.parametrize("row", [7, {"M": True, "config": {}}, {"M": 4, "config": {"x": 1}}])
def test_a_row_without_what_the_server_needs_is_refused(row: object) -> None:
    with pytest.raises(Refused):
        plan("x.json", MOE.encode(), parse_change(GOOD | {"rows": [row]}))
