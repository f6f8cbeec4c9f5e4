"""``retuned validate``: the answer, its exit code, and files that are no candidates."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import typer
from tests.expect import raises_code, raises_naming
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.validate import Header, read_candidate, validate
from retuned.contract import Language, TrustClass
from retuned.errors import UnreadableInput, UsageError
from retuned.lab.languages.gpu import find_gpu
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

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
    result = CliRunner().invoke(app, [str(path), "--json", "--seconds", "60"])
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert {"status", "reason", "gate", "speedup", "evidence"} <= body.keys()
    assert (body["status"], body["reason"], body["gate"]) == ("reject", "slower", "G5")
    assert body["speedup"]["upper"] < 1.0


def test_a_wrong_candidate_is_rejected_with_its_reason(app: typer.Typer, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX.replace("/ sum", "/ (sum + 0.01f)"))
    result = CliRunner().invoke(app, [str(path), "--json", "--seconds", "60"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["reason"] == "wrong-output"


def test_a_candidate_for_people_is_answered_in_text(app: typer.Typer, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX.replace("expf", "expff"))
    result = CliRunner().invoke(app, [str(path), "--seconds", "60"])
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
    with raises_code(UnreadableInput, "not-utf8", "byte 0"):
        read_candidate(path, definition="softmax_n32")


@pytest.mark.parametrize(
    ("header", "line", "says"),
    [
        ("// params: " + "[" * 5000, 3, "nested"),
        ("// params: &a {x: 1}\n// layouts: *a", 4, "aliases"),
        ("// params: {}\n// params: {}", 4, "twice"),
        ("// params: !!python/name:os.system x", 3, "tags"),
    ],
    ids=["deep", "alias", "twice", "tag"],
)
def test_a_header_is_read_as_data_and_refused_with_its_line(
    header: str, line: int, says: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f"// ---\n// definition: softmax_n32\n{header}\n// ---\n")
    with raises_code(UnreadableInput, "bad-header", says) as caught:
        read_candidate(path, definition=None)
    assert (caught.value.code, caught.value.where) == ("bad-header", f"{path}:{line}")


def test_a_pipe_or_device_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.cpp"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with raises_code(UnreadableInput, "not-a-file", str(path)):
            read_candidate(path, definition="softmax_n32")


def test_a_candidate_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "//" + "x" * 2_000_000)
    with raises_code(UnreadableInput, "too-large", str(path)):
        read_candidate(path, definition="softmax_n32")


def test_a_candidate_that_says_nothing_needs_the_flag(tmp_path: Path) -> None:
    with raises_naming(UsageError, "--definition"):
        read_candidate(written(tmp_path, SOFTMAX), definition=None)
    solution, _ = read_candidate(written(tmp_path, SOFTMAX), definition="softmax_n32")
    assert solution.entry == Header().entry


TRITON = '''# ---
# definition: softmax_n32
# params: {BLOCK: 32, num_warps: 2}
# grid: [M]
# shapes: [{M: 3}]
# ---
"""One row per program."""

import triton
import triton.language as tl


@triton.jit
def kernel(x, y, M, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * N + at, mask=at < N, other=float("-inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + tl.program_id(0) * N + at, e / tl.sum(e, axis=0), mask=at < N)
'''


def test_a_python_file_is_a_triton_candidate_with_its_grid(tmp_path: Path) -> None:
    solution, shapes = read_candidate(written(tmp_path, TRITON, "mine.py"), definition=None)
    assert solution.language is Language.TRITON
    assert solution.sources[0].path.endswith(".py")
    assert solution.grid == ("M",)
    assert solution.params == {"BLOCK": 32, "num_warps": 2}
    assert solution.trust is TrustClass.GENERATED
    assert shapes == ({"M": 3},)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("import triton\n", "import os\nimport triton\n", "contract-violated"),
        ("e / tl.sum(e, axis=0)", "e", "wrong-output"),
    ],
)
def test_a_triton_candidate_is_refused_with_its_reason_without_a_gpu_too(
    old: str, new: str, reason: str, app: typer.Typer, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = written(tmp_path, TRITON.replace(old, new), "mine.py")
    result = CliRunner().invoke(app, [str(path), "--json", "--seconds", "60"])
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert (body["status"], body["reason"]) == ("reject", reason)
    assert body["timed"] is (find_gpu() is not None)


def test_a_win_of_the_interpreter_is_no_win(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(
        status=Status.PROMOTE,
        reason=Reason.FASTER,
        gate="G6",
        candidate="sha256:" + "c" * 64,
        incumbent="sha256:" + "d" * 64,
        speedup=Interval(lower=1.5, point=1.6, upper=1.7, confidence=0.99),
        noise_floor_ratio=1.01,
        shapes=(
            ShapeResult(
                axes={"M": 3},
                weight=1.0,
                incumbent_us=2.0,
                candidate_us=1.0,
                speedup=Interval(lower=1.5, point=1.6, upper=1.7, confidence=0.99),
            ),
        ),
    )
    path = written(tmp_path, TRITON, "mine.py")
    solution, _ = read_candidate(path, definition=None)
    finding = Finding(solution=solution, verdict=verdict, seconds=1.0)
    monkeypatch.setattr("retuned.cli.validate._measure", lambda *_, **__: finding)
    for timed, code in ((True, 0), (False, 1)):
        monkeypatch.setattr("retuned.cli.validate.is_timed", lambda _, timed=timed: timed)
        result = CliRunner().invoke(app, [str(path), "--json"])
        assert result.exit_code == code


EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "scale_bias"


@pytest.mark.parametrize(
    ("formula", "code", "said"),
    [
        ("{'y': x + bias[:3]}", "reference-failed", "could not be broadcast"),
        ("{'z': x + residual * scale + bias}", "reference-failed", "not outputs"),
        ("{'y': x + residual + bias}", "definition-proves-nothing", "depends on input 'scale'"),
        ("{'y': 2 * (x + residual * scale + bias)}", "incumbent-disagrees", "one of the two"),
    ],
)
def test_a_wrong_reference_of_ones_own_is_an_unreadable_input(
    formula: str, code: str, said: str, app: typer.Typer, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(EXAMPLE, folder)
    file = folder / "scale_bias.yaml"
    text = file.read_text().replace('{"y": x + residual * scale + bias}', formula)
    text = text.replace("name: scale_bias_h1024", f"name: wrong_{len(formula)}_h1024")
    assert formula in text
    file.write_text(text)
    words = [str(folder / "candidate.cpp"), "--definition", str(file), "--seconds", "60"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UnreadableInput)
    assert (error.exit_code, error.code, error.where) == (3, code, str(file))
    assert said in error.message


def test_evidence_is_named_with_the_file_that_keeps_it(app: typer.Typer, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SOFTMAX.replace("/ sum", "/ (sum + 0.01f)"))
    body = json.loads(CliRunner().invoke(app, [str(path), "--json", "--seconds", "60"]).stdout)
    kept = Path(body["evidence_file"]).read_bytes()
    assert body["evidence"] == "sha256:" + hashlib.sha256(kept).hexdigest()
