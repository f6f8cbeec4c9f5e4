"""The command line as a whole: its entry, its help, its version, and an end by ^C."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from retuned.cli.commands import app
from retuned.errors import HarnessError, RetunedError, TemporaryError

BLOCK = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            print("importing", flush=True)
            try:
                time.sleep(280)
            except BaseException:  # some packages catch everything while they are imported
                print("caught", flush=True)
sys.meta_path.insert(0, Slow())
sys.argv = ["retuned", *{arguments!r}]
from retuned.cli import main
main()
"""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("retuned.cli.commands", ["doctor"]),
        ("typer", ["analyze", "x.json"]),
        ("retuned.stages.drift", ["proposals"]),
    ],
)
def test_an_interrupt_while_modules_are_imported_ends_quietly(
    name: str, arguments: list[str]
) -> None:
    code = BLOCK.format(name=name, arguments=arguments)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "retuned: interrupted\n")


def test_an_interrupt_in_a_command_ends_quietly() -> None:
    code = (
        "import os, signal, sys\n"
        # whoever starts the tests in the background has interrupts ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from retuned.cli import commands, main\n"
        "def stop(): os.kill(os.getpid(), signal.SIGINT)\n"
        "commands.app = stop\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "retuned: interrupted\n")


def test_the_entry_imports_nothing_that_takes_time() -> None:
    code = "import sys, retuned.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"typer", "click", "rich", "pydantic", "numpy", "torch", "sqlite3"}


def test_the_version_is_the_installed_one() -> None:
    result = CliRunner().invoke(app, ["--version"])
    version = importlib.metadata.version("retuned")
    assert (result.exit_code, result.stdout) == (0, f"retuned {version}\n")


def names() -> Iterator[tuple[str, ...]]:
    """Yield the words that name the program itself, its groups and its commands."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield name
        waiting += [((*name, sub), each) for sub, each in getattr(command, "commands", {}).items()]


def test_every_help_is_written_for_people() -> None:
    found = list(names())
    assert len(found) > 15
    for name in found:
        page = CliRunner().invoke(app, [*name, "--help"], prog_name="retuned").stdout
        assert page.startswith(" ".join(("Usage: retuned", *name))), name
        for word in ("---- ", "----\n", "Raises", "Parameters", "Returns", "``"):
            assert word not in page, name


def _below(cls: type[RetunedError]) -> list[type[RetunedError]]:
    return [cls, *(each for below in cls.__subclasses__() for each in _below(below))]


def test_only_what_may_succeed_when_tried_again_ends_with_5() -> None:
    again = {*_below(TemporaryError), *_below(HarnessError)}
    for each in _below(RetunedError):
        assert each.exit_code in (1, 2, 3, 4, 5), each
        assert (each.exit_code == 5) == (each in again), each
