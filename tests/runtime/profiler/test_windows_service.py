"""The thread's decisions, over a recorder that records nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retuned.runtime.profiler import service
from retuned.runtime.profiler.ownership import ProfilerOwnership
from retuned.runtime.profiler.recorder import cupti_leaves
from retuned.runtime.profiler.schedule import Cost, Rule
from retuned.runtime.profiler.service import MAX_EMPTY, MAX_FAILED, Windows
from retuned.runtime.schema import Refused

KERNEL = b'{"traceEvents": [{"cat": "kernel"}]}'


class FakeRecorder:
    """Writes what it is told to, or refuses."""

    def __init__(self, *_: object) -> None:
        self.turns = ProfilerOwnership()
        self.cost = Cost()
        self.reason = ""
        self.content = KERNEL
        self.error: Exception | None = None
        self.on_device = True
        self.lengths: list[float] = []

    def guard(self) -> bool:
        return True

    def unready(self) -> str:
        return self.reason

    def allocations(self) -> int:
        return 0

    def take(self, length_s: float, plain: Path) -> None:
        self.lengths.append(length_s)
        self.cost = Cost(open_s=length_s, stalled_s=0.001)
        if self.error is not None:
            raise self.error
        plain.write_bytes(self.content)


class Taken:
    """Windows over a fake recorder, with a server that works."""

    def __init__(self, folder: Path, rule: Rule) -> None:
        self.launched = 1
        self.windows = Windows(
            folder,
            rule,
            launched=lambda: self.launched,
            quiet=contextlib.nullcontext,
            captured=lambda: False,
        )
        recorder = self.windows._recorder
        assert isinstance(recorder, FakeRecorder)
        self.recorder = recorder

    def turn(self, *, launches: int = 1) -> float:
        self.launched += launches
        return self.windows.turn()


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    monkeypatch.setattr(service, "Recorder", FakeRecorder)
    found = Taken(tmp_path, Rule(every_s=60.0, length_s=0.2))
    yield found
    found.windows.close()


def test_windows_grow_to_their_length_and_what_they_took_is_told(
    taken: Taken, tmp_path: Path
) -> None:
    for _ in range(5):
        assert taken.turn() >= 60.0
    assert taken.recorder.lengths == pytest.approx([0.025, 0.05, 0.1, 0.2, 0.2])
    state = taken.windows.state()
    assert (state["written"], state["kernels"], state["last"]) == (5, 5, "written")
    assert state["open_s"] == pytest.approx(0.575)
    assert state["spent_s"] == pytest.approx(0.58)
    assert len(list(tmp_path.glob("retuned-*.pt.trace.json.gz"))) == 5


def test_a_server_that_launches_nothing_is_not_profiled(taken: Taken, tmp_path: Path) -> None:
    taken.turn()
    taken.turn(launches=0)
    assert taken.windows.state()["skipped"] == {"idle": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("reason", ["torch-missing", "another-profiler", "other-rank"])
def test_a_window_that_may_not_be_taken_is_counted_by_its_reason(
    taken: Taken, tmp_path: Path, reason: str
) -> None:
    taken.recorder.reason = reason
    taken.turn()
    assert taken.windows.state()["skipped"] == {reason: 1}
    assert (taken.recorder.lengths, list(tmp_path.iterdir())) == ([], [])


def test_a_window_that_the_server_ended_leaves_no_file_and_its_cost_is_counted(
    taken: Taken, tmp_path: Path
) -> None:
    taken.recorder.error = Refused("yielded", detail="the server began to profile")
    taken.turn()
    state = taken.windows.state()
    assert (state["skipped"], state["written"]) == ({"yielded": 1}, 0)
    assert state["spent_s"] > 0.0
    assert list(tmp_path.iterdir()) == []


def test_a_full_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Recorder", FakeRecorder)
    full = Taken(tmp_path, Rule(folder_bytes=10))
    (tmp_path / "unread").write_bytes(bytes(11))
    full.turn()
    assert full.windows.state()["skipped"] == {"folder-full": 1}
    assert full.recorder.lengths == [], "nothing is recorded that could not be kept"


def test_what_fails_again_and_again_ends_windows_and_nothing_else(taken: Taken) -> None:
    taken.recorder.error = RuntimeError("the device is lost")
    for _ in range(MAX_FAILED):
        taken.turn()
    state = taken.windows.state()
    assert (state["off"], state["skipped"]) == ("failed", {"failed": MAX_FAILED})


def test_a_gpu_that_recordings_never_see_is_not_recorded_for_ever(taken: Taken) -> None:
    taken.recorder.content = b'{"traceEvents": []}'
    for _ in range(MAX_EMPTY):
        taken.turn()
    assert taken.windows.state()["off"] == "no-kernels"


def test_a_server_without_a_gpu_needs_no_kernels_of_one(taken: Taken) -> None:
    taken.recorder.content, taken.recorder.on_device = b'{"traceEvents": []}', False
    for _ in range(MAX_EMPTY + 1):
        taken.turn()
    assert taken.windows.state()["off"] == ""


def test_the_thread_takes_windows_by_itself_and_ends_at_once_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "Recorder", FakeRecorder)
    taken = Taken(tmp_path, Rule(every_s=0.01, budget_ratio=1000.0))
    taken.windows.start()
    taken.windows.start()
    threads = [each for each in threading.enumerate() if each.name == "retuned-windows"]
    assert len(threads) == 1
    deadline_s = time.monotonic() + 120.0
    while not taken.windows.state()["written"] and time.monotonic() < deadline_s:
        time.sleep(0.005)
    taken.windows.close()
    assert taken.windows.state()["written"] == 1
    assert not threads[0].is_alive()
    taken.windows.start()
    assert "retuned-windows" not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize("cuda", ["11.8", "12.5", "unknown"])
def test_a_profiler_that_would_stay_in_the_process_is_never_begun(cuda: str) -> None:
    assert not cupti_leaves(cuda, {})
    assert not cupti_leaves(cuda, {"TEARDOWN_CUPTI": "1"})
