"""What windows ask of PyTorch where there is a GPU: over modules that stand for it."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.runtime.profiler.recorder import Recorder
from retuned.runtime.schema import Refused

VARIABLES = ("KINETO_USE_DAEMON", "CUDA_INJECTION64_PATH", "ROCP_TOOL_LIBRARIES", "HSA_TOOLS_LIB")


class FakeTorch:
    """A server on the second of two GPUs."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.capturing = False
        self.cancelled = False
        self.broken = ""
        self.graphs = False
        self.teardown: str | None = None
        self.torch = types.SimpleNamespace(
            version=types.SimpleNamespace(cuda="13.2"),
            cuda=types.SimpleNamespace(
                is_available=lambda: True,
                is_initialized=lambda: True,
                device_count=lambda: 2,
                memory_reserved=lambda index: index * 4096,
                memory_stats=lambda index: {"allocation.all.allocated": 7 + index},
                set_device=lambda index: self.calls.append(f"device {index}"),
                synchronize=lambda index: self.call(f"wait {index}"),
            ),
            _C=types.SimpleNamespace(
                _profiler=types.SimpleNamespace(_ExperimentalConfig=self.settings)
            ),
        )
        self.profiler = types.SimpleNamespace(
            profile=self.profile,
            _run_on_profiler_stop=lambda: self.calls.append("off"),
            _prepare_profiler=lambda: None,
            _enable_profiler=lambda: None,
            _disable_profiler=lambda: None,
        )

    def settings(self, *, profile_all_threads: bool) -> str:
        return f"all threads {profile_all_threads}"

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.broken:
            raise RuntimeError(name)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        if self.capturing:
            raise Refused("capturing", detail="a graph is being captured")
        yield

    def profile(self, **asked: Any) -> Any:
        assert asked["record_shapes"]
        assert asked["experimental_config"] == "all threads True"
        made = types.SimpleNamespace(use_device=asked["use_device"])
        return _Profile(self, made)


class _Profile:
    def __init__(self, fake: FakeTorch, made: Any) -> None:
        self.fake, self.use_device = fake, made.use_device
        self.kineto_results = types.SimpleNamespace(
            trace_start_ns=lambda: 0 if fake.cancelled else 1,
            save=lambda path: fake.call(f"save {Path(path).name}"),
        )

    def __enter__(self) -> None:
        self.fake.call(f"begin {self.use_device}")

    def __exit__(self, *_: object) -> None:
        assert self.use_device is None, "else it waits for a device by itself"
        self.fake.teardown = os.environ.get("TEARDOWN_CUPTI")
        self.fake.call("end")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    found = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", found.torch)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", found.profiler)
    for name in (*VARIABLES, "TEARDOWN_CUPTI", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_no_window_opens_in_a_process_that_holds_a_captured_graph(fake: FakeTorch) -> None:
    fake.graphs = True
    assert Recorder(fake.quiet, lambda: fake.graphs).unready() == "graphs-captured"


@pytest.mark.parametrize("server", [None, "0", "1"])
def test_cupti_is_finalised_only_where_no_graph_exists(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch, server: str | None
) -> None:
    if server is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", server)
    recorder = Recorder(fake.quiet, lambda: fake.graphs)
    for graphs, teardown in ((False, "1"), (True, "0")):  # True: captured during the window
        fake.graphs = graphs
        recorder.take(0.001, Path("x"))
        assert fake.teardown == teardown
        assert os.environ.get("TEARDOWN_CUPTI") == server, "the server's own profiler reads it"


def test_a_window_begins_on_the_servers_device_waits_for_it_and_is_written(fake: FakeTorch) -> None:
    recorder = Recorder(fake.quiet, lambda: fake.graphs)
    assert recorder.unready() == ""
    assert recorder.allocations() == 8
    recorder.take(0.001, Path("/nowhere/x"))
    assert fake.calls == ["device 1", "begin cuda", "wait 1", "end", "save x"]
    assert recorder.cost.open_s >= 0.001


def test_no_window_begins_under_a_capture(fake: FakeTorch) -> None:
    recorder = Recorder(fake.quiet, lambda: fake.graphs)
    fake.capturing = True
    with raises_code(Refused, "capturing"):
        recorder.take(0.001, Path("x"))
    assert fake.calls == ["device 1"]
    assert recorder.turns.begin(), "the turn was given back"


def test_a_window_that_a_capture_began_in_ends_without_waiting_for_the_device(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(fake.quiet, lambda: fake.graphs)

    def captured(_: float) -> bool:
        fake.capturing = True
        return False

    monkeypatch.setattr(recorder.turns.wanted, "wait", captured)
    recorder.take(0.001, Path("x"))
    assert fake.calls == ["device 1", "begin cuda", "end", "save x"]


def test_a_recording_that_was_cancelled_is_not_written_which_would_end_the_process(
    fake: FakeTorch,
) -> None:
    fake.cancelled = True
    with raises_code(Refused, "another-profiler"):
        Recorder(fake.quiet, lambda: fake.graphs).take(0.001, Path("x"))
    assert fake.calls[-1] == "end"


def test_a_device_that_fails_while_it_is_waited_for_leaves_no_recording_on(fake: FakeTorch) -> None:
    fake.broken = "wait 1"
    Recorder(fake.quiet, lambda: fake.graphs).take(0.001, Path("x"))
    assert fake.calls[-2:] == ["end", "save x"]


def test_a_recording_that_does_not_begin_leaves_no_sign_that_one_is_on(fake: FakeTorch) -> None:
    fake.broken = "begin cuda"
    recorder = Recorder(fake.quiet, lambda: fake.graphs)
    with pytest.raises(RuntimeError):
        recorder.take(0.001, Path("x"))
    assert fake.calls[-1] == "off"
    assert recorder.turns.begin()


@pytest.mark.parametrize("name", VARIABLES)
def test_where_somebody_elses_profiler_is_in_the_process_none_begins(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "/lib/tool.so")
    assert Recorder(fake.quiet, lambda: fake.graphs).unready() == "another-profiler"


def test_a_process_says_why_it_is_not_profiled(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(fake.quiet, lambda: fake.graphs)
    monkeypatch.setenv("RANK", "1")
    assert recorder.unready() == "other-rank"
    monkeypatch.delenv("RANK")
    fake.torch.cuda.memory_reserved = lambda _: 0
    assert recorder.unready() == "device-asleep"
    fake.torch.version.cuda = "12.4"
    assert recorder.unready() == "cupti-stays"
    fake.torch.cuda.is_initialized = lambda: False
    assert recorder.unready() == "device-asleep"
    fake.profiler._is_profiler_enabled = True
    assert recorder.unready() == "another-profiler"
    del fake.profiler._enable_profiler
    assert Recorder(fake.quiet, lambda: fake.graphs).unready() == "profiler-unknown"
    fake.torch._C._profiler._ExperimentalConfig = lambda: None
    assert recorder.unready() == "no-all-threads"
    monkeypatch.delitem(sys.modules, "torch")
    assert recorder.unready() == "torch-missing"
