"""``retuned bench kernelbench``: one object for machines, a table for people, and going on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from retuned.cli.commands import app

DATA = Path(__file__).resolve().parents[1] / "data" / "kernelbench"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two problems: one with a wrong kernel, beside its level's folder, and one without."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    problems = tmp_path / "problems" / "level1"
    problems.mkdir(parents=True)
    for name in ("2_row_mean", "3_softmax"):
        shutil.copy(DATA / "problems" / "level1" / f"{name}.py", problems)
    (tmp_path / "kernels").mkdir()
    shutil.copy(DATA / "wrong" / "2_row_mean.cpp", tmp_path / "kernels")
    return tmp_path


def bench(folder: Path, *words: str) -> Result:
    given = ["--problems", str(folder / "problems"), "--solutions", str(folder / "kernels")]
    return CliRunner().invoke(app, ["bench", "kernelbench", *given, "--seconds", "0.2", *words])


def test_json_has_scores_over_all_problems_and_every_result(folder: Path) -> None:
    done = bench(folder, "--json", "--p", "1.5")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["problems"] == 2
    assert body["counts"] == {
        "measured": 0, "failed": 1, "no-solution": 1, "unsupported": 0, "error": 0,
    }  # fmt: skip
    assert list(body["fast_p"]) == ["fast_0", "fast_1", "fast_1.5", "fast_2"]
    assert body["fast_p_compile"] is None
    first, second = body["results"]
    assert (first["problem"], first["reason"]) == ("level1/2_row_mean", "compile-failed")
    assert second["tensors"]["inputs"] == [{"name": "x", "dtype": "float32", "shape": [48, 700]}]
    assert second["axes"] == [48, 700]


def test_a_run_is_taken_up_from_its_file(folder: Path) -> None:
    file = folder / "out.jsonl"
    first = bench(folder, "--out", str(file))
    assert first.exit_code == 0, first.output
    assert "from the file" not in first.stderr
    assert len(file.read_text().splitlines()) == 2
    shutil.copy(DATA / "solutions/level1/2_row_mean.cpp", folder / "kernels")
    again = bench(folder, "--out", str(file))
    assert again.stderr.count("from the file") == 1
    assert "fast_0 = 0.500" in again.stdout
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--generator", "nobody"), "there are search"),
        (("--generator", "evolve"), "evolve_url"),
        (("--problems", "/nowhere"), "the folder does not exist"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    done = bench(folder, *words)
    assert done.exit_code != 0
    assert message in str(done.exception)
