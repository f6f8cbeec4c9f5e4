"""``retuned validate``: the answer, its exit code, and files that are no candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.validate import Header, read_candidate, validate
from retuned.contract import TrustClass
from retuned.errors import UnreadableInput, UsageError

HEADER = """// ---
// definition: softmax_n32
// shapes: [{M: 4}, {M: 16}]
// ---
"""
SOFTMAX = """#include <cmath>
#include <cstdint>
extern "C" void kernel(void* const* t, const int64_t* axes, void*, int64_t part, int64_t parts) {
  const float* x = (const float*)t[0];
  float* y = (float*)t[1];
  const int64_t M = axes[0], N = axes[1];
  for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m) {
    float top = x[m * N], sum = 0;
    for (int64_t n = 1; n < N; ++n) top = x[m * N + n] > top ? x[m * N + n] : top;
    for (int64_t n = 0; n < N; ++n) sum += expf(x[m * N + n] - top);
    for (int64_t n = 0; n < N; ++n) y[m * N + n] = expf(x[m * N + n] - top) / sum;
  }
}
"""


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(validate)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: Path, text: str, name: str = "mine.cpp") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_correct_but_slow_candidate_is_rejected_with_exit_code_one(
    app: typer.Typer, tmp_path: Path
) -> None:
    path = written(tmp_path, HEADER + SOFTMAX)
    result = CliRunner().invoke(app, [str(path), "--json", "--seconds", "5"])
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert {"status", "reason", "gate", "speedup", "evidence"} <= body.keys()
    assert (body["status"], body["reason"], body["gate"]) == ("reject", "slower", "G5")
    assert body["speedup"]["upper"] < 1.0


def test_a_wrong_candidate_is_rejected_with_its_reason(app: typer.Typer, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX.replace("/ sum", "/ (sum + 0.01f)"))
    result = CliRunner().invoke(app, [str(path), "--json", "--seconds", "5"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["reason"] == "wrong-output"


def test_a_candidate_for_people_is_answered_in_text(app: typer.Typer, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX.replace("expf", "expff"))
    result = CliRunner().invoke(app, [str(path), "--seconds", "5"])
    assert result.exit_code == 1
    assert "compile-failed" in result.stdout


def test_the_flag_is_stronger_than_the_header(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX)
    solution, shapes = read_candidate(path, definition="softmax_n64")
    assert solution.definition == "softmax_n64"
    assert shapes == ({"M": 4}, {"M": 16})


def test_a_solution_as_json_is_read_and_not_trusted(tmp_path: Path) -> None:
    incumbent = catalog.get("softmax_n32").incumbent
    assert incumbent.trust is TrustClass.PARAMETERS
    path = written(tmp_path, incumbent.model_dump_json(), "mine.json")
    solution, _ = read_candidate(path, definition=None)
    assert solution.digest == incumbent.digest
    assert solution.trust is TrustClass.GENERATED


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.cpp", "// ---\n// definition: [1\n// ---\n", "bad-header"),
        ("a.cpp", "// ---\n// definitoin: softmax_n32\n// ---\n", "bad-header"),
        (
            "a.cpp",
            "// ---\n// definition: x\n// layouts: {x: odd}\n// ---\n",
            "bad-header",
        ),
        ("a.json", "{", "bad-solution"),
        ("a.json", '{"name": "x"}', "bad-solution"),
    ],
)
def test_files_that_are_no_candidates_are_unreadable_with_their_place(
    name: str, text: str, code: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(UnreadableInput) as caught:
        read_candidate(path, definition=None)
    assert caught.value.code == code
    assert str(path) in caught.value.where
    assert caught.value.exit_code == 3


def test_an_absent_file_and_one_that_is_not_text_are_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput):
        read_candidate(tmp_path / "absent.cpp", definition="softmax_n32")
    path = tmp_path / "binary.cpp"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableInput, match="byte 0"):
        read_candidate(path, definition="softmax_n32")


def test_a_candidate_that_says_nothing_needs_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--definition"):
        read_candidate(written(tmp_path, SOFTMAX), definition=None)
    solution, _ = read_candidate(written(tmp_path, SOFTMAX), definition="softmax_n32")
    assert solution.entry == Header().entry
