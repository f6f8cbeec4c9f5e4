"""The daemon stops in order, at once, and says by its status what stopped it."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.standalone.kill_processes import Process, below, survivors, working_in
from tests.standalone.kill_world import KillWorld

from retuned.errors import TemporaryError, UsageError
from retuned.experiment.child import LabProcess
from retuned.experiment.fake import FakeBench
from retuned.stages.experiment import ExperimentPlan
from retuned.standalone.context import RecordKind
from retuned.store.lock import daemon_runs, only_one

HOLD = """
import sys
from pathlib import Path
from retuned.store.lock import only_one
with only_one(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KillWorld]:
    made = KillWorld(tmp_path / "w", seed=1)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_daemon_told_to_stop_ends_its_experiment_and_resumes_it_later(world: KillWorld) -> None:
    world.start()
    assert world.daemon is not None
    family: list[Process] = []

    def measuring() -> bool:
        family[:] = below(daemon.pid)
        return any("harness/child.py" in each.command for each in family)

    daemon = world.daemon
    assert world.wait(measuring), world.log()[-3000:]
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=120) == 0
    assert survivors(family, within_s=30.0) == []
    assert "Traceback" not in world.log()
    assert "running" in world.phases(RecordKind.EXPERIMENT).values(), (
        "it is not failed, it is resumed"
    )
    world.start()
    assert world.wait(world.swapped), world.log()[-3000:]
    world.daemon.send_signal(signal.SIGINT)
    assert world.daemon.wait(timeout=120) == 130


def plan() -> ExperimentPlan:
    return ExperimentPlan.model_validate(
        {
            "id": "p",
            "hypothesis": "h",
            "definition": "linear",
            "workloads": [{"definition": "linear", "axes": {"M": 8}}],
            "incumbent": "sha256:" + "0" * 64,
            "generators": (),
            "budget": {},
            "environment": "sha256:" + "e" * 64,
        }
    )


def test_a_lab_that_was_stopped_begins_no_run(tmp_path: Path) -> None:
    builder = FakeBench(script={}, root=tmp_path)
    lab = LabProcess(tmp_path, cores=tuple, solution=lambda _: None, builder=builder)
    lab.stop()
    with raises_naming(TemporaryError, "stopped"):
        list(lab.run(plan(), known={}))
    assert builder.stopped
    assert working_in(tmp_path) == []


def test_the_state_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with only_one(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "daemon.lock").stat().st_mode) == 0o600


def test_a_lock_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "daemon.lock").touch(0o644)
    with only_one(tmp_path):
        assert stat.S_IMODE((tmp_path / "daemon.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize("obstacle", ["file", "folder-in-place-of-the-lock"])
def test_a_state_folder_that_cannot_be_used_is_a_clear_refusal(
    obstacle: str, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    if obstacle == "file":
        folder.write_text("not a folder")
    else:
        (folder / "daemon.lock").mkdir(parents=True)
    with raises_naming(UsageError, str(folder)), only_one(folder):
        pytest.fail("it must not run")


def test_a_fault_of_the_daemon_itself_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    with raises_naming(OSError, "disk full"), only_one(tmp_path):
        raise OSError("disk full")


def test_a_second_daemon_is_told_who_holds_the_state(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TemporaryError, match=f"pid {holder.pid}") as caught, only_one(tmp_path):
            pytest.fail("it must not run")
        assert (caught.value.exit_code, caught.value.code) == (5, "state-busy")
        assert daemon_runs(tmp_path)
        holder.communicate()
    assert not daemon_runs(tmp_path)  # though its number still stands in the file
    assert not daemon_runs(tmp_path / "none")
    with only_one(tmp_path):
        pass
