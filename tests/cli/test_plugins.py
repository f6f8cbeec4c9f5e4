"""Commands of other distributions: with their plug-in they run, without it they name the extra."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from retuned.cli import plugins
from retuned.cli.commands import app
from retuned.errors import MissingDependency

ROOT = Path(__file__).resolve().parents[2]
_WITHOUT = """
import importlib.metadata
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **w: () if "retuned" in w.get("group", "") else found(**w)
from retuned.cli import main
main()
"""


def program(*points: importlib.metadata.EntryPoint, patch: pytest.MonkeyPatch) -> typer.Typer:
    """Return a command line with one group of its own and these plug-ins."""
    patch.setattr(plugins, "entry_points", lambda **_wanted: points)
    made, kernels = typer.Typer(rich_markup_mode=None), typer.Typer()
    kernels.command("list")(lambda: typer.echo("listed"))
    made.add_typer(kernels, name="kernels")
    plugins.add_commands(made, kernels=kernels)
    return made


@pytest.mark.parametrize(
    "words",
    [
        ("bench",),
        ("bench", "kernelbench", "--problems", "x"),
        ("bench", "--help"),
        ("dataset", "export", "--out", "x"),
        ("kernels", "import", "x.json"),
        ("kernels", "export", "softmax_n64"),
    ],
)
def test_without_the_extra_its_commands_name_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(program(patch=monkeypatch), words)
    assert isinstance(result.exception, MissingDependency)
    assert result.exception.exit_code == 4
    assert "install retuned[bench]" in result.exception.message


def test_without_the_extra_everything_else_works_and_help_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = program(patch=monkeypatch)
    assert CliRunner().invoke(made, ["--help"]).stdout.count("install retuned[bench]") == 2
    assert CliRunner().invoke(made, ["kernels", "list"]).stdout == "listed\n"


def test_the_command_of_an_installation_without_the_extra_exits_with_4() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT, "dataset", "export", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 4
    assert json.loads(ended.stdout)["error"]["code"] == "missing-dependency"


def test_a_plug_in_that_cannot_be_loaded_is_named_and_stops_no_other_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = importlib.metadata.EntryPoint("x", "no_such_module:f", "retuned.commands")
    made = program(point, patch=monkeypatch)
    assert "no_such_module" in capsys.readouterr().err
    assert CliRunner().invoke(made, ["kernels", "list"]).exit_code == 0
    assert isinstance(CliRunner().invoke(made, ["bench"]).exception, MissingDependency)
    with pytest.raises(MissingDependency):
        plugins.trace_format()


def test_traces_need_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_wanted: ())
    with pytest.raises(MissingDependency):
        plugins.trace_format()


def test_with_the_extra_the_commands_are_its_own() -> None:
    group = typer.main.get_group(app)
    assert set(typer.main.get_group(_app("bench")).commands) == {"kernelbench"}
    assert set(typer.main.get_group(_app("dataset")).commands) == {"export"}
    assert {"import", "export"} <= set(typer.main.get_group(_app("kernels")).commands)
    assert {"bench", "dataset", "kernels"} <= set(group.commands)
    for name in ("import", "export"):
        (command,) = (each for each in _app("kernels").registered_commands if each.name == name)
        assert command.callback is not None
        assert command.callback.__module__ == "retuned_bench.flashinfer.commands"


def _app(name: str) -> typer.Typer:
    (found,) = (each.typer_instance for each in app.registered_groups if each.name == name)
    assert found is not None
    return found


def test_help_loads_signatures_of_plug_ins_and_nothing_else_of_them() -> None:
    code = (
        "import sys; from retuned.cli.commands import app; app(['--help'], standalone_mode=False);"
        "print(*(name for name in sys.modules if name.startswith('retuned_bench')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.splitlines()[-1].split())
    parts = ("dataset", "flashinfer", "kernelbench")
    assert loaded == {
        "retuned_bench",
        "retuned_bench.commands",
        "retuned_bench.dataset.options",
        *(f"retuned_bench.{part}" for part in parts),
        *(f"retuned_bench.{part}.commands" for part in parts),
    }


def test_the_extra_names_the_distribution_and_both_have_one_version() -> None:
    daemon = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    bench = tomllib.loads((ROOT / "benchmarks/retuned_bench/pyproject.toml").read_text("utf-8"))
    assert daemon["project"]["optional-dependencies"]["bench"] == [bench["project"]["name"]]
    assert daemon["tool"]["uv"]["workspace"]["members"] == ["benchmarks/retuned_bench"]
    version = daemon["project"]["version"]
    assert bench["project"]["version"] == version
    assert f"retuned=={version}" in bench["project"]["dependencies"]
    assert importlib.metadata.version("retuned-bench") == version


def test_no_lock_names_the_distribution() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    assert [
        path.name for path in locks if re.search(r"^retuned", path.read_text("utf-8"), re.MULTILINE)
    ] == []
