"""Joining a process: once, part by part, without harm to whoever imports or attaches."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.runtime import attach
from retuned.runtime.core.attach import Runtime, attached
from retuned.runtime.plugins import join as joining
from retuned.runtime.plugins import register
from retuned.runtime.plugins.join import Part, PluginAttachment
from retuned.runtime.plugins.startup import ImportWatch

Make = Callable[..., PluginAttachment]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a joining of this process, in which ``early_server`` and ``late_server`` are modules."""
    monkeypatch.setenv("RETUNED_SOCKET_DIR", str(tmp_path / "s"))
    monkeypatch.delenv("RETUNED_RUNTIME", raising=False)
    (tmp_path / "late_server.py").write_text("ready = True\n")
    (tmp_path / "broken_server.py").write_text("raise ImportError('no libcuda')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[PluginAttachment] = []

    def joining_of(*parts: Part) -> PluginAttachment:
        made.append(PluginAttachment(parts))
        return made[-1]

    yield joining_of
    for each in made:
        each.leave()
    sys.modules.pop("late_server", None)


class Installed:
    """Notes with which runtime a part was installed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runtimes: list[Runtime] = []
        self.error = error

    def __call__(self, runtime: Runtime) -> str:
        self.runtimes.append(runtime)
        if self.error is not None:
            raise self.error
        return "on"


def part(installed: Installed, *, needs: str = "late_server", only_with: str = "") -> Part:
    return Part("part", "RETUNED_PART", needs, installed, only_with=only_with)


def test_a_part_is_installed_when_what_it_needs_has_been_imported(make: Make) -> None:
    installed = Installed()
    process = make(part(installed))
    runtime = process.join()
    assert runtime is not None
    assert (runtime.enabled, runtime.socket, installed.runtimes) == (True, None, [])
    importlib.import_module("late_server")
    assert installed.runtimes == [runtime]
    assert not any(isinstance(finder, ImportWatch) for finder in sys.meta_path)


def test_joining_again_changes_nothing(make: Make) -> None:
    installed = Installed()
    process = make(part(installed, needs="sys"))
    runtime = process.join()
    finders = list(sys.meta_path)
    assert [process.join() for _ in range(3)] == [runtime] * 3
    assert installed.runtimes == [runtime]
    assert attached().count(runtime) == 1  # type: ignore[arg-type]
    assert sys.meta_path == finders


def test_many_threads_join_once(make: Make) -> None:
    installed = Installed()
    process = make(part(installed, needs="sys"))
    together = threading.Barrier(8)

    def join() -> None:
        together.wait(30)
        process.join()

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(installed.runtimes) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("RETUNED_RUNTIME", "off"), ("RETUNED_SOCKET_DIR", "")]
)
def test_off_or_without_a_folder_nothing_is_joined(
    make: Make, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    before, finders = attached(), list(sys.meta_path)
    assert make(part(Installed())).join() is None
    assert (attached(), sys.meta_path) == (before, finders)


def test_a_part_that_is_off_or_not_to_come_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Installed()
    monkeypatch.setenv("RETUNED_PART", "off")
    finders = list(sys.meta_path)
    make(part(installed)).join()
    monkeypatch.delenv("RETUNED_PART")
    make(part(installed, only_with="NO_SUCH_VARIABLE")).join()
    assert sys.meta_path == finders
    importlib.import_module("late_server")
    assert installed.runtimes == []


def test_a_part_that_fails_takes_nobody_along(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Installed(RuntimeError("no such symbol")), Installed()
    process = make(
        Part("bad", "RETUNED_BAD", "sys", bad), Part("good", "RETUNED_GOOD", "late_server", good)
    )
    with caplog.at_level(logging.ERROR):
        process.join()
        importlib.import_module("late_server")
        process.join()
    assert (len(bad.runtimes), len(good.runtimes)) == (1, 1), "nor is it tried again"
    assert [record.message for record in caplog.records] == [
        "bad: not installed; the server runs without it"
    ]


def test_a_failed_import_is_the_importers_own(make: Make) -> None:
    installed = Installed()
    make(part(installed, needs="broken_server")).join()
    for _ in range(2):
        with raises_naming(ImportError, "libcuda"):
            importlib.import_module("broken_server")
    assert installed.runtimes == []


def test_a_server_that_attaches_by_hand_keeps_the_say(make: Make, tmp_path: Path) -> None:
    installed = Installed()
    process = make(part(installed, needs="sys"))
    first = process.join()
    assert first is not None
    own = attach(server="own", socket_dir=tmp_path / "s")
    assert first not in attached(), "a process has one socket"
    assert len(list((tmp_path / "s").iterdir())) == 1
    assert process.join() is own
    assert installed.runtimes == [first, own]
    own.close()


def test_a_server_that_has_attached_already_is_joined_as_it_is(make: Make, tmp_path: Path) -> None:
    own = attach(server="own", socket_dir=tmp_path / "s")
    installed = Installed()
    assert make(part(installed, needs="sys")).join() is own
    assert installed.runtimes == [own]
    own.close()


def test_leaving_takes_back_what_was_joined(make: Make) -> None:
    before, finders = attached(), list(sys.meta_path)
    process = make(part(Installed()))
    process.join()
    process.leave()
    assert (process.runtime, attached(), sys.meta_path) == (None, before, finders)


def test_whatever_happens_the_entry_point_does_not_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*, arrived: str) -> None:
        raise MemoryError

    monkeypatch.setattr(joining, "join", fails)
    register()
    assert "it runs without Retuned" in caplog.text


def test_the_parts_of_a_server_exist() -> None:
    """Each names functions of the runtime that others change."""
    from retuned.runtime import intercept
    from retuned.runtime.graphs.process import process_graphs

    assert {each.needs for each in joining.PARTS} >= {"torch", "triton"}
    assert callable(Runtime.intercept_triton)
    assert hasattr(intercept.current(), "when_seen")
    assert isinstance(process_graphs().reason, str)
