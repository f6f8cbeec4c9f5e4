"""Tuned files of vLLM and SGLang: what is found in them without an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.report.survey import survey_of
from retuned.report.survey_files import (
    FINDINGS,
    MOST_FINDINGS,
    SurveyedTable,
    default_row,
    is_table,
    nearest,
    survey_table,
)

NAME = "E=8,N=1024,device_name=NVIDIA_H200.json"
ROW = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 32,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 5,
}


def judged(
    rows: Mapping[str, Any], name: str = NAME, *, version: str = "3.6.0", **more: Any
) -> SurveyedTable:
    body = ({"triton_version": version} if version else {}) | dict(rows)
    return survey_table(name, json.dumps(body).encode(), **more)


def codes(table: SurveyedTable) -> list[str]:
    return [each.code for each in table.findings]


def test_a_table_without_a_fault_has_no_finding() -> None:
    table = judged({"1": ROW, "64": ROW}, triton="3.6.1")
    assert (table.family, table.rows, table.version, table.findings) == ("moe", 2, "3.6.0", ())
    assert survey_of(tables=[table]).conclusion.code == "nothing-to-gain"


@pytest.mark.parametrize(
    ("rows", "code", "keys"),
    [
        ({"1": ROW, "64": None}, "row-null", ("64",)),
        ({"1": ROW, "64": {"BLOCK_SIZE_M": 16}}, "keys-missing", ("64",)),
        ({"1": {k: v for k, v in ROW.items() if k != "num_warps"}}, "fields-defaulted", ("1",)),
        ({"1": ROW | {"colour": 3}}, "field-unknown", ("1",)),
        ({"1": ROW, "many": ROW}, "file-invalid", ("many",)),
        ({"16": ROW, "016": ROW}, "row-never-matches", ("16",)),
        ({"-4": ROW, "8": ROW, "1": ROW}, "row-never-matches", ("-4",)),
        ({"1": ROW, "2": ROW | {"BLOCK_SIZE_M": 128}}, "neighbour-jump", ("1", "2")),
    ],
)
def test_a_faulty_row_is_named(rows: Mapping[str, Any], code: str, keys: Sequence[str]) -> None:
    (finding,) = judged(rows).findings
    assert (finding.code, finding.rows) == (code, keys)


def test_of_two_rows_with_one_key_the_first_never_matches() -> None:
    row = json.dumps(ROW)
    data = f'{{"triton_version": "3.6.0", "4": {row}, "4": {row}}}'.encode()
    (finding,) = survey_table(NAME, data).findings
    assert (finding.code, finding.rows) == ("row-never-matches", ("4",))


@pytest.mark.parametrize(
    "name",
    [
        "E=8,N=1024,device_name=NVIDIA_H200_NVL.json",
        "E=8,N=1024,device_name=NVIDIA H100.json",
        "E=8,N=1024,device_name=NVIDIA_H100,dtype=bf16.json",
        "E=8,N=1024,device_name=NVIDIA_H100,dtype=float8.json",
        "E=8,N=1024,device_name=NVIDIA_H100,mine.json",
        "E=0,N=1024,device_name=NVIDIA_H100.json",
    ],
)
def test_a_name_that_no_server_builds_is_found(name: str) -> None:
    assert codes(judged({"1": ROW}, name)) == ["name-never-asked"]


def test_versions_are_compared_to_the_minor_one() -> None:
    assert codes(judged({"1": ROW}, version="")) == ["version-missing"]
    assert codes(judged({"1": ROW}, version="3.1.0", triton="3.6.0")) == ["version-differs"]
    assert codes(judged({"1": ROW}, version="3.6.1", triton="3.6.0+cu130")) == []
    assert codes(judged({"1": ROW}, version="3.1.0")) == []


def test_sglang_names_its_version_by_the_folder_and_fails_on_the_key() -> None:
    name = "E=8,N=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    table = judged({"1": ROW}, name, version="", folder="triton_3_4_0", triton="3.6.0")
    assert (table.version, codes(table)) == ("3.4.0", ["version-differs"])
    forbidden = judged({"1": ROW}, name, folder="triton_3_6_0", triton="3.6.0")
    assert codes(forbidden) == ["version-forbidden"]


def test_integer_groups_need_a_split() -> None:
    name = "E=8,N=1024,device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    (finding,) = judged({"1": ROW}, name).findings
    assert (finding.code, finding.detail) == ("keys-missing", "SPLIT_K")


@pytest.mark.parametrize(("dtype", "block"), [("", None), ("fp8_w8a8", (128, 128))])
def test_rows_that_equal_the_default_are_found(dtype: str, block: tuple[int, int] | None) -> None:
    name = "E=8,N=1024,device_name=NVIDIA_H200" + (
        ",dtype=fp8_w8a8,block_shape=[128,128].json" if block else ".json"
    )
    default = default_row(64, 8, dtype=dtype, block=block)
    assert default is not None
    table = judged({"64": default | {"SPLIT_K": 1}, "65": ROW}, name)
    assert [each.rows for each in table.findings if each.code == "equals-default"] == [("64",)]


def test_asked_sizes_show_rows_that_serve_other_sizes() -> None:
    asked = {"8,1024": [20, 300, 9000]}
    table = judged({"1": ROW, "16": ROW, "256": ROW, "1024": ROW, "2048": ROW}, asked=asked)
    found = {each.code: each.rows for each in table.findings}
    assert table.asked == 3
    assert found == {"asked-beyond-rows": ("9000",), "row-not-asked": ("1", "1024")}
    far = judged({"1": ROW, "64": ROW}, asked={"8,1024": [30]})
    assert ("asked-far-from-row", ("30->1",)) in [(e.code, e.rows) for e in far.findings]
    assert judged({"1": ROW}, asked={"9,1024": [30]}).asked == 0


def test_of_two_rows_as_near_the_first_in_the_file_is_chosen() -> None:
    assert nearest([1, 64], 32) == 1
    assert nearest([64, 1], 33) == 64
    assert (nearest([3, 1], 2), nearest([1, 3], 2)) == (3, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"1": NaN}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"1": ' * 50_000,
        b" " * (9 << 20),
    ],
)
def test_what_a_server_cannot_read_is_one_finding(data: bytes) -> None:
    table = survey_table(NAME, data)
    assert (codes(table), table.rows) == (["file-invalid"], 0)


def test_a_huge_table_is_bounded() -> None:
    table = judged({str(n): {f"field_{n}_{'x' * 500}": n} for n in range(5000)})
    assert table.rows <= 1024
    assert len(table.findings) <= MOST_FINDINGS
    assert len(table.model_dump_json()) < 100_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["1", "64", "0", "-1", "triton_version", "x", "9" * 400]) | st.text()


@given(
    st.dictionaries(KEYS, JSON | st.just(ROW)),
    st.sampled_from([NAME, "N=1,K=1,device_name=X.json"]),
)
def test_any_rows_are_survived(rows: dict[str, Any], name: str) -> None:
    table = survey_table(name, json.dumps(rows).encode(), asked={"*": [1, 7], "8,1024": [5]})
    assert set(codes(table)) <= set(FINDINGS)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("N=5120,K=2048,device_name=X,dtype=fp8_w8a8,block_shape=[128,128].json", "block-product"),
        ("headdim=64,dstate=128,device_name=X,cache_dtype=float16.json", "mamba-table"),
        ("NVIDIA_H200_EXPAND_TRUE.json", "lora"),
        (NAME, "moe"),
    ],
)
def test_names_of_tuned_files_are_recognised(name: str, family: str) -> None:
    assert is_table(name)
    assert survey_table(name, b'{"1": {}}').family == family


@pytest.mark.parametrize("name", ["run.pt.trace.json", "config.json", "", "E=8.json", "x" * 5000])
def test_other_names_are_no_tuned_files(name: str) -> None:
    assert not is_table(name)
