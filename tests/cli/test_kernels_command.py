"""``retuned kernels`` and ``retuned validate --definition FILE`` as their user sees them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.expect import raises_code, raises_naming
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.kernels import app
from retuned.cli.validate import validate
from retuned.errors import MissingDependency, RetunedError, UnreadableInput, UsageError
from retuned.lab.languages.gpu import find_gpu
from retuned_bench.flashinfer.traces import import_trace

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "scale_bias"
NAME = "scale_bias_h1024"


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.delenv("RETUNED_DEFINITION_FILES", raising=False)
    yield
    catalog.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "mine"))


def run(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, RetunedError):
        raise result.exception
    assert result.exit_code == code, result.output
    return str(result.stdout)


def test_the_list_names_the_catalogs_families_and_ones_own(folder: Path) -> None:
    body = json.loads(run("list", "--json", "--definition-file", folder))
    found = {row["name"]: row for row in body["kernels"]}
    assert found["rmsnorm_h{H}"]["origin"] == "catalog"
    assert found[NAME] == {
        "name": NAME,
        "op_type": "scale_bias",
        "description": "y = x + residual * scale + bias, with a scale and a bias per channel",
        "origin": "own",
        "languages": ["cpu_cpp", "triton"],
    }
    text = run("list", "--definition-file", folder)
    assert NAME in text
    assert "rmsnorm_h{H}" in text
    columns = {
        line.index(row["description"])
        for row in body["kernels"]
        for line in text.splitlines()
        if line.startswith(row["name"] + " ")
    }
    assert len(columns) == 1, "descriptions stand below each other"


def test_the_settings_name_ones_own_definitions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_DEFINITION_FILES", str(folder))
    assert NAME in run("list")
    assert json.loads(run("show", NAME, "--json"))["origin"] == "own"


def test_show_says_what_a_kernel_computes_and_what_may_run(folder: Path) -> None:
    body = json.loads(run("show", folder / "scale_bias.yaml", "--json"))
    assert body["axes"]["H"] == {"length": 1024}
    assert body["inputs"]["scale"] == {"shape": ["H"], "dtype": "float32", "constant": True}
    rows = body["languages"]["cpu_cpp"]["structures"][1]
    assert (rows["name"], rows["points"]) == ("rows", 9)
    assert body["languages"]["triton"]["incumbent"]["params"] == {"BLOCK": 256, "num_warps": 4}
    text = run("show", folder / "scale_bias.yaml", "--reference")
    assert "incumbent scale_bias.plain" in text
    assert "residual * scale" in text
    assert "rmsnorm" in run("show", "rmsnorm_h64")


@pytest.mark.parametrize("name", ["rmsnorm_h{H}", "rmsnorm"])
def test_a_family_is_asked_for_its_lengths(name: str) -> None:
    with raises_naming(UsageError, f"'{name}'", "rmsnorm_h1024"):
        run("show", name)


def test_an_unknown_name_and_a_broken_file_are_told(folder: Path) -> None:
    with raises_naming(UsageError, "'qqqq_h1'", "1048576"):
        run("show", "qqqq_h1")
    with raises_naming(UsageError, "'rmsnrom_h1024'", "rmsnorm_h{H}") as caught:
        run("show", "rmsnrom_h1024")
    assert str(caught.value).count("{H}") <= 3, "the nearest few, not all"
    with raises_naming(UsageError, "'scale_bais_h1024'", NAME):
        run("show", "scale_bais_h1024", "--definition-file", folder)
    with raises_code(UnreadableInput, "cannot-open", "absent.yaml"):
        run("show", folder / "absent.yaml")
    path = folder / "scale_bias.yaml"
    path.write_text(path.read_text().replace("flops: 3", "flop: 3"))
    with raises_code(UnreadableInput, "definition-invalid", "line 24: flop", "flops?"):
        run("show", path)


def test_bench_measures_the_incumbent_against_what_a_search_finds(
    folder: Path, tmp_path: Path
) -> None:
    traces = tmp_path / "traces.jsonl"
    words: list[str | Path] = [
        "bench",
        folder / "scale_bias.yaml",
        "--shape",
        "M=3",
        "--language",
        "cpu_cpp",
    ]
    limits: list[str | Path] = ["--seconds", "6", "--candidates", "2", "--traces", traces]
    body = json.loads(run(*words, *limits, "--json"))
    assert body["definition"] == NAME
    assert body["candidates"] <= 2
    assert sum(body["verdicts"].values()) == body["candidates"]
    assert body["environment"]["arch"].startswith("cpu:")
    (shape,) = body["shapes"]
    assert shape["axes"] == {"M": 3}
    assert shape["incumbent_us"] > shape["floor_us"] > 0.0
    assert (shape["speedup"] is None) == (shape["best_us"] is None) == (body["best"] is None)
    read = [import_trace(json.loads(line), where="t") for line in traces.read_text().splitlines()]
    assert all(each.trace.definition == NAME for each in read)
    assert len(read) >= (1 if body["best"] is not None else 0)


def test_bench_tells_the_incumbents_time_where_nothing_else_was_measured_to_the_end(
    folder: Path,
) -> None:
    path = folder / "scale_bias.yaml"
    text = path.read_text().replace("THREADS: [1, 2, 4]", "THREADS: [1]")
    broken = folder / "scale_bias_rows.cpp"
    broken.write_text(broken.read_text().replace("* s + b", "* s - b"))
    path.write_text(text)
    words: list[str | Path] = [
        "bench",
        path,
        "--shape",
        "M=9",
        "--language",
        "cpu_cpp",
        "--seconds",
        "5",
    ]
    body = json.loads(run(*words, "--json"))
    assert set(body["verdicts"]) <= {"wrong-output"}  # as many as there was time for
    assert body["best"] is None
    (shape,) = body["shapes"]
    assert shape["incumbent_us"] > 0.0
    assert (shape["best_us"], shape["speedup"]) == (None, None)
    assert "the incumbent stays" in run(*words)


def test_bench_without_a_gpu_measures_no_triton(folder: Path) -> None:
    if find_gpu() is not None:
        pytest.skip("there is a GPU")
    with raises_naming(MissingDependency, "GPU", "--language cpu_cpp"):
        run("bench", folder / "scale_bias.yaml", "--language", "triton")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shape", "M"], "M=64"),
        (["--shape", "M=1,M=2"], "twice"),
        (["--shape", "T=1"], "axes M"),
        (["--shape", "M=99999999999"], "2 GiB"),
        (["--language", "rust"], "gpu_cpp, library"),
        (["--language", "gpu_cpp"], "in gpu_cpp"),
    ],
)
def test_bench_says_what_it_wants(folder: Path, words: list[str], says: str) -> None:
    with raises_naming(UsageError, says):
        run("bench", folder / "scale_bias.yaml", *words)


def test_lengths_that_a_definition_is_not_for_are_refused(folder: Path) -> None:
    path = folder / "scale_bias.yaml"
    path.write_text(path.read_text() + "\nwhere: M <= 512\n")
    with raises_naming(UsageError, "M <= 512", "513"):
        run("bench", path, "--shape", "M=513")


@pytest.fixture
def validating() -> typer.Typer:
    made = typer.Typer()
    made.command()(validate)
    return made


@pytest.mark.parametrize(
    ("old", "new", "right"), [("+ bias[h]", "", False), ("", "", True)], ids=["wrong", "right"]
)
def test_a_candidate_for_ones_own_definition_is_validated(
    folder: Path, validating: typer.Typer, old: str, new: str, right: bool
) -> None:
    path = folder / "candidate.cpp"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    words = [path, "--definition", folder / "scale_bias.yaml", "--json", "--seconds", "24"]
    result = CliRunner().invoke(validating, list(map(str, words)))
    assert result.exit_code in (0, 1), result.output
    body = json.loads(result.stdout)
    if right:  # how fast it is depends on the machine's other work
        assert body["gate"] in ("G5", "G6")
        assert body["reason"] not in ("wrong-output", "nan-mismatch", "timed-output-wrong")
    else:
        assert body["reason"] == "wrong-output"
