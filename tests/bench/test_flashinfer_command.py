"""``retuned kernels import`` and ``export`` as their user sees them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.expect import raises_naming
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.commands import app
from retuned.contract import Solution
from retuned.errors import RetunedError, UsageError
from retuned_bench.flashinfer import exchange

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
    result = CliRunner().invoke(app, ["kernels", *map(str, words)])
    if isinstance(result.exception, RetunedError):
        raise result.exception
    assert result.exit_code == code, result.output
    return str(result.stdout)


def test_what_is_exported_is_imported_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    run("export", folder / "scale_bias.yaml", "--out", out)
    (definition,) = out.glob("definitions/scale_bias/*.json")
    solutions = sorted(out.glob(f"solutions/scale_bias/{NAME}/*.json"))
    assert len(solutions) == 2
    (read,) = json.loads(run("import", definition, "--json"))["documents"]
    assert (read["kind"], read["usable"]) == ("definition", True)
    back = tmp_path / "back"
    for path in solutions:
        assert "usable" in run("import", path, "--out", back)
    kept = [Solution.model_validate_json(path.read_text()) for path in back.iterdir()]
    run("show", folder / "scale_bias.yaml")
    wanted = {catalog.get(NAME, language=each).incumbent.digest for each in catalog.languages(NAME)}
    assert {each.digest for each in kept} == wanted


def test_files_that_are_there_stay_unless_it_is_said(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    words = ("export", folder / "scale_bias.yaml", "--out", out)
    run(*words)
    (first,) = out.glob("definitions/scale_bias/*.json")
    whole = first.read_text()
    first.write_text("mine")
    mine = {path: path.read_text() for path in out.rglob("*.json")}
    with raises_naming(UsageError, "already", "--force"):
        run(*words)
    assert {path: path.read_text() for path in out.rglob("*") if path.is_file()} == mine
    run(*words, "--force")
    assert first.read_text() == whole


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    out, precious = tmp_path / "set", tmp_path / "precious"
    precious.write_text("mine")
    words = ("export", folder / "scale_bias.yaml", "--out", out)
    run(*words)
    (first,) = out.glob("definitions/scale_bias/*.json")
    first.unlink()
    first.symlink_to(precious)
    with raises_naming(UsageError, "already", "--force"):
        run(*words)
    run(*words, "--force")
    assert precious.read_text() == "mine"
    assert not first.is_symlink()


def test_a_file_that_came_meanwhile_is_not_replaced_and_leaves_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("theirs")
    with pytest.raises(FileExistsError):
        exchange._write_file(path, "mine", force=False)
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_folder_all_is_on_stdout() -> None:
    body = json.loads(run("export", "softmax_n64"))
    assert body["definition"]["name"] == "softmax_n64"
    assert {each["spec"]["language"] for each in body["solutions"]} == {
        "cpp",
        "cuda",
        "triton",
    }


def test_host_code_is_read_and_there_is_nothing_to_write(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    body = {
        "name": "theirs",
        "definition": "softmax_n64",
        "author": "someone",
        "spec": {"language": "python", "target_hardware": ["X"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": "raise SystemExit(1)"}],
    }
    path.write_text(json.dumps(body))
    assert "not a candidate here (host-code)" in run("import", path)
    with raises_naming(UsageError, "'main.py::run'"):
        run("import", path, "--out", tmp_path / "out")
