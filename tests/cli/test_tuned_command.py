"""``retuned tuned`` for people and machines."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code, raises_naming
from tests.runtime.tuned_files.test_formats import GEMM, MOE, RESULTS
from typer.testing import CliRunner

from retuned.cli.tuned import app
from retuned.errors import Refused, RetunedError, UnreadableInput, UsageError

NEW = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "num_warps": 2}
CHANGE = {"guard": [[4, 8]], "rows": [{"M": 6, "config": NEW}]}


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, RetunedError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.fixture
def moe(tmp_path: Path) -> Path:
    path = tmp_path / "E=8,N=16,device_name=X.json"
    path.write_text(MOE)
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "change.json"
    path.write_text(json.dumps(CHANGE))
    return path


def test_a_file_is_shown_row_by_row(moe: Path) -> None:
    said = run("show", moe, "--json")
    assert (said["format"], said["about"]) == ("moe-vllm", {"triton_version": "3.9.0"})
    assert [row["M"] for row in said["rows"]] == [1, 64]
    assert (said["changes"], said["digest"][:7]) == ([], "sha256:")
    text = run("show", moe)
    assert "triton_version  3.9.0" in text
    assert "64  64            128" in text


@pytest.mark.parametrize(
    ("name", "text", "kind", "first"),
    [
        ("bf16_tuned_gemm.csv", GEMM, "aiter", {"M": "16", "kernelName": "k_a"}),
        ("tunableop_results0.csv", RESULTS, "tunable-op", {"solution": "Gemm_Hipblaslt_12"}),
    ],
)
def test_tables_are_shown_as_what_they_are(
    tmp_path: Path, name: str, text: str, kind: str, first: dict[str, str]
) -> None:
    (tmp_path / name).write_text(text)
    said = run("show", tmp_path / name, "--json")
    assert said["format"] == kind
    assert {name: said["rows"][0][name] for name in first} == first


def test_a_file_among_those_of_a_triton_is_sglangs(tmp_path: Path) -> None:
    folder = tmp_path / "triton_3_9_0"
    folder.mkdir()
    (folder / "x.json").write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    assert run("show", folder / "x.json", "--json")["format"] == "moe-sglang"


def test_a_change_is_tried_without_a_trace(moe: Path, rows: Path) -> None:
    said = run("diff", moe, "--rows", rows, "--json")
    assert (
        said["rows"] == ["M=3: pinned", "M=4: pinned", "M=6: added", "M=9: pinned"] or said["rows"]
    )
    assert '+    "6": {' in said["diff"]
    assert "M=6: added" in run("diff", moe, "--rows", rows)
    assert moe.read_text() == MOE
    assert sorted(each.name for each in moe.parent.iterdir()) == sorted([moe.name, rows.name])


def test_a_change_is_written_and_taken_back(moe: Path, rows: Path) -> None:
    said = run("write", moe, "--rows", rows, "--json")
    assert said["change"]["epoch"] == 0
    assert json.loads(moe.read_text())["6"] == NEW
    (shown,) = run("show", moe, "--json")["changes"]
    assert shown == said["change"]
    assert said["change"]["order"] in run("show", moe)
    with pytest.raises(Refused) as refused:
        run("write", moe, "--rows", rows)
    assert (refused.value.code, refused.value.exit_code) == ("nothing-to-change", 1)
    assert run("restore", moe, "--json")["restored"]
    assert moe.read_text() == MOE
    with raises_code(Refused, "nothing-to-restore", str(moe)):
        run("restore", moe)


def test_the_example_of_the_page_is_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "tuned-files.md").read_text("utf-8")
    blocks = dict(re.findall(r"```json (\w+)\n(.*?)```", page, re.S))
    path, rows = tmp_path / "E=8,N=1024,device_name=X.json", tmp_path / "change.json"
    path.write_text(blocks["file"])
    rows.write_text(blocks["change"])
    for line in re.findall(r"^retuned tuned (.*?)(?: +#.*)?$", page, re.M):
        arguments = [tmp_path / word if ".json" in word else word for word in shlex.split(line)]
        said = run(*arguments, "--json")
        if arguments[0] == "write":
            assert json.loads(path.read_text())["16"]["BLOCK_SIZE_N"] == 128
    assert said["restored"]
    assert path.read_text() == blocks["file"]


def test_a_change_that_cannot_be_pinned_is_an_answer(tmp_path: Path, rows: Path) -> None:
    with pytest.raises(Refused) as refused:
        run("diff", tmp_path / "new.json", "--rows", rows, "--json")
    assert (refused.value.code, refused.value.exit_code) == ("default-unknown", 1)


def test_what_cannot_be_read_is_told_with_its_place(moe: Path, rows: Path, tmp_path: Path) -> None:
    moe.write_text(MOE[:-20])
    for command in (("show", moe), ("diff", moe, "--rows", rows)):
        with pytest.raises(UnreadableInput) as unreadable:
            run(*command)
        assert (unreadable.value.code, unreadable.value.where) == ("tuned-invalid", str(moe))
    with raises_code(UnreadableInput, "file-missing", "none.json"):
        run("show", tmp_path / "none.json")
    rows.write_text("{")
    with raises_code(UnreadableInput, "change-invalid", "line 1 column 2"):
        run("diff", moe, "--rows", rows)
    rows.write_text('{"guard": 7, "rows": [1]}')
    with raises_code(UnreadableInput, "change-invalid", "'guard'"):
        run("diff", moe, "--rows", rows)


def test_a_misspelt_field_of_a_change_is_named_with_those_there_are(moe: Path, rows: Path) -> None:
    rows.write_text(json.dumps({**CHANGE, "defautls": []}))
    with raises_code(UnreadableInput, "change-invalid", "'defautls'", "defaults, format"):
        run("diff", moe, "--rows", rows)
    assert moe.read_text() == MOE


def test_a_kind_that_cannot_be_guessed_has_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(GEMM)
    with raises_naming(UsageError, "--format", "moe-vllm"):
        run("show", tmp_path / "x.txt")
    with raises_naming(UsageError, "--format", "moe-vllm"):
        run("show", tmp_path / "x.txt", "--format", "yaml")
    assert run("show", tmp_path / "x.txt", "--format", "aiter", "--json")["format"] == "aiter"
