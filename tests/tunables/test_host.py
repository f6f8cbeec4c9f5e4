"""The host of the server's container, and children that it starts, as real processes."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code
from tests.tunables.hosts import HostProcess, eventually, host_process, is_alive
from tests.tunables.test_tune import environment, recipe, report

from retuned.errors import CandidateError, HarnessError
from retuned.runtime.core.environment import SWITCHES
from retuned.runtime.tunables import environment as reported
from retuned.tunables import host as host_module
from retuned.tunables.host import (
    CHILD_LOG_BYTES,
    SERVER_VARIABLES,
    Host,
    Settings,
    child_variables,
    child_words,
)
from retuned.tunables.process import HostedChild, ServerHost
from retuned.tunables.tune import tune_class

SLEEPER = "import time\ntime.sleep(600.0)\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostProcess, ServerHost]]:
    with (
        host_process(tmp_path_factory.mktemp("host")) as process,
        ServerHost(process.path, wait_s=30.0) as runner,
    ):
        yield process, runner


# --- a child over the socket ----------------------------------------------------------------------


def test_a_search_over_the_socket_finds_the_faster_configuration(
    served: tuple[HostProcess, ServerHost], tmp_path: Path
) -> None:
    process, runner = served
    with HostedChild(environment(tmp_path), host=runner, device="") as child:
        assert set(child.hello["versions"]) >= {"torch", "triton"}
        (pid,) = process.children
        assert Path(os.readlink(f"/proc/{pid}/cwd")).parent == process.work
        assert f"PYTHONPATH={process.path.parent}/code:" in Path(f"/proc/{pid}/environ").read_text()
        found = tune_class(child, report(), recipe())
        assert found.best is not None
        assert found.best["kwargs"] == {"BLOCK": 256, "MODE": 0}
        # a compile error is an answer, and not the child's end
        assert {each.reason for each in found.trials if each.config["kwargs"]["MODE"] == 3} == {
            "crashed"
        }
    eventually(lambda: not process.children)


def test_a_child_is_killed_when_its_connection_closes(
    served: tuple[HostProcess, ServerHost], tmp_path: Path
) -> None:
    process, runner = served
    made = environment(tmp_path)
    (tmp_path / "server_kernels.py").write_text(SLEEPER)
    child = HostedChild(made, host=runner, device="", modules=["server_kernels"])
    eventually(lambda: bool(process.children))
    (pid,) = process.children
    child.close()  # while it loads, so that it cannot see this itself
    eventually(lambda: not is_alive(pid))
    eventually(lambda: not list(process.work.glob("child-*")))


def test_a_child_that_hangs_is_ended_and_another_one_answers(
    served: tuple[HostProcess, ServerHost], tmp_path: Path
) -> None:
    process, runner = served
    made = environment(tmp_path)
    (tmp_path / "server_kernels.py").write_text(SLEEPER)
    with HostedChild(made, host=runner, device="") as child:
        (pid,) = process.children
        with raises_code(CandidateError, "hangs"):
            child.ask({"op": "open", "recipe": recipe()}, limit_s=1.0)
        states = [child.alive]
        eventually(lambda: not is_alive(pid))
        with raises_code(CandidateError, "crashed"):
            child.ask({"op": "hello"}, limit_s=2.0)
        child.restart()
        assert [*states, child.alive] == [False, True]
        assert child.ask({"op": "about"}, limit_s=30.0)["environment"]["cpu"].startswith("cpu:")


def test_a_child_that_ends_is_a_crash_of_the_candidate(
    served: tuple[HostProcess, ServerHost], tmp_path: Path
) -> None:
    process, runner = served
    with HostedChild(environment(tmp_path), host=runner, device="") as child:
        (pid,) = process.children
        os.kill(pid, signal.SIGKILL)
        with raises_code(CandidateError, "crashed"):
            child.ask({"op": "about"}, limit_s=30.0)
        assert not child.alive


def test_a_request_may_be_longer_than_the_buffers_of_a_socket(
    served: tuple[HostProcess, ServerHost], tmp_path: Path
) -> None:
    _, runner = served
    with HostedChild(environment(tmp_path), host=runner, device="") as child:
        asked = {"op": "about", "filler": "x" * (8 << 20)}
        assert child.ask(asked, limit_s=60.0)["versions"]


# --- who may connect, and until when --------------------------------------------------------------


def test_a_user_that_is_not_named_gets_nothing(tmp_path: Path) -> None:
    with host_process(tmp_path, uids=str(os.geteuid() + 1)) as process:
        runner = ServerHost(process.path, wait_s=30.0)
        with raises_code(HarnessError, "host-refused", "uid-refused", str(os.geteuid())):
            runner.__enter__()
        child = HostedChild(environment(tmp_path), host=runner, device="")
        with pytest.raises(HarnessError), child:
            pass
        assert not process.children
        assert process.process.poll() is None


def test_without_users_the_host_does_not_begin(tmp_path: Path) -> None:
    with host_process(tmp_path, uids="") as process:
        assert process.ended() == 2
        assert not process.path.exists()


@pytest.mark.parametrize("how", ["told", "killed"])
def test_the_host_ends_with_its_runner_whatever_ends_that(tmp_path: Path, how: str) -> None:
    with host_process(tmp_path) as process:
        runner = ServerHost(process.path, wait_s=30.0).__enter__()
        child = HostedChild(environment(tmp_path), host=runner, device="").__enter__()
        (pid,) = process.children
        if how == "told":
            runner.__exit__(None, None, None)
        else:
            assert runner._own is not None
            runner._own.close()  # what the kernel does for a killed program
        assert process.ended() == 0
        assert not is_alive(pid)
        assert not process.path.exists()
        child.close()


def test_a_line_ends_the_host_without_a_runner_too(tmp_path: Path) -> None:
    with host_process(tmp_path) as process:
        connection = ServerHost(process.path, wait_s=0.0).connected(wait_s=30.0)
        connection.sendall(b'{"op": "end"}\n')
        assert process.ended() == 0
        connection.close()


def test_a_terminated_host_is_never_taken_for_a_crash_of_a_candidate(tmp_path: Path) -> None:
    with (
        host_process(tmp_path) as process,
        ServerHost(process.path, wait_s=30.0) as runner,
        HostedChild(environment(tmp_path), host=runner, device="") as child,
    ):
        (pid,) = process.children
        process.process.send_signal(signal.SIGTERM)
        with raises_code(HarnessError, "host-gone"):
            child.ask({"op": "open", "recipe": recipe()}, limit_s=30.0)
            child.ask({"op": "about"}, limit_s=30.0)
        assert process.ended() == 0
        assert not is_alive(pid)
        with raises_code(HarnessError, "host-absent"):
            child.restart()


def test_a_host_without_a_runner_ends(tmp_path: Path) -> None:
    with host_process(tmp_path, wait_s=0.3) as process:
        assert process.ended() == 1


def test_a_host_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    found: list[int] = []
    runner = ServerHost(tmp_path / "host.sock", wait_s=30.0)

    def enter() -> None:
        with runner:
            found.append(runner.children)

    waiting = threading.Thread(target=enter)
    waiting.start()
    with host_process(tmp_path, children=3) as process:
        waiting.join(30.0)
        assert found == [3]
        assert process.ended() == 0


def test_a_host_that_never_comes_is_absent(tmp_path: Path) -> None:
    with raises_code(HarnessError, "host-absent", str(tmp_path)):
        ServerHost(tmp_path / "host.sock", wait_s=0.2).__enter__()


# --- the protocol, with small children ------------------------------------------------------------

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\n"


@contextmanager
def running(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, program: str = ECHO, children: int = 1
) -> Iterator[tuple[Path, io.BytesIO, Host]]:
    """Run a host in this process, with children that only echo."""
    monkeypatch.setattr(host_module, "child_words", lambda *_: [sys.executable, "-c", program])
    path, log = folder / "host.sock", io.BytesIO()
    uids = frozenset({os.geteuid()})
    host = Host(Settings(path, uids, folder, children=children), root=folder, log=log)
    thread = threading.Thread(target=host.run)
    thread.start()
    eventually(path.exists)
    try:
        yield path, log, host
    finally:
        host.end()
        thread.join(30.0)
        assert not thread.is_alive()


def connected(path: Path, line: bytes) -> socket.socket:
    made = ServerHost(path, wait_s=0.0).connected(wait_s=30.0)
    made.settimeout(30.0)
    with suppress(BrokenPipeError, ConnectionResetError):
        made.sendall(line)
    return made


def line_of(connection: socket.socket) -> bytes:
    """Return the next line; empty at the end."""
    found = b""
    while not found.endswith(b"\n") and (one := connection.recv(1)):
        found += one
    return found


START = b'{"op": "start", "device": "", "path": [], "variables": {}}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{\n", "bad-request"),
        (b"[]\n", "bad-request"),
        (b"[" * 100_000 + b"\n", "bad-request"),
        (b"\xff\xfe\n", "bad-request"),
        (b'{"op": "shell"}\n', "op-unknown"),
        (b"x" * (host_module.MAX_LINE_BYTES + 2), "line-too-long"),
        (b'{"op": "start", "path": 3}\n', "not-started"),
        (b'{"op": "start", "variables": {"TRITON_A": "a\\u0000b"}}\n', "not-started"),
    ],
)
def test_a_line_that_is_not_understood_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, reason: str
) -> None:
    with running(tmp_path, monkeypatch) as (path, _, host), connected(path, line) as made:
        answer = json.loads(line_of(made))
        assert (answer["ok"], answer["reason"]) == (False, reason)
        assert not host._children


def test_a_connection_without_a_line_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module._request, "__kwdefaults__", {"limit_s": 0.1})
    with running(tmp_path, monkeypatch) as (path, _, _), connected(path, b'{"op": ') as made:
        assert json.loads(line_of(made))["reason"] == "no-request"


def test_what_follows_the_first_line_belongs_to_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running(tmp_path, monkeypatch) as (path, _, _),
        connected(path, START + b"one\ntw") as made,
    ):
        assert line_of(made) == b"one\n"
        made.sendall(b"o\n")
        assert line_of(made) == b"two\n"


def test_no_more_children_run_than_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running(tmp_path, monkeypatch, children=1) as (path, _, host),
        connected(path, START + b"one\n") as first,
    ):
        assert first.recv(8) == b"one\n"
        second = connected(path, START + b"two\n")
        second.settimeout(0.7)
        with pytest.raises(TimeoutError):
            second.recv(8)
        assert len(host._children) == 1
        first.close()
        second.settimeout(30.0)
        assert second.recv(8) == b"two\n"
        second.close()


def test_a_second_runner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch) as (path, _, _), ServerHost(path, wait_s=30.0) as first:
        with raises_code(HarnessError, "host-refused", "runner-known"):
            ServerHost(path, wait_s=30.0).__enter__()
        assert not first.gone


def test_a_childs_log_is_copied_up_to_a_bound_and_never_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = f"import sys\nsys.stderr.write('x' * {4 * CHILD_LOG_BYTES})\nsys.stderr.flush()\n{ECHO}"
    with (
        running(tmp_path, monkeypatch, program=loud) as (path, log, _),
        connected(path, START + b"one\n") as made,
    ):
        assert made.recv(8) == b"one\n"
        eventually(lambda: b"cut here" in log.getvalue())
        assert log.getvalue().count(b"x") == CHILD_LOG_BYTES


@pytest.mark.parametrize("leaves", [False, True])
def test_a_descendant_of_a_child_does_not_keep_its_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """One that stays in the child's process group ends with the child."""
    forking = f"""import os, time
child = os.fork()
if child == 0:
    if {leaves}: os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(0.2)
"""
    with running(tmp_path, monkeypatch, program=forking) as (path, _, host):
        with connected(path, START) as made:
            descendant = int(line_of(made))
            assert line_of(made) == b""
        eventually(lambda: not host._children)
        if leaves:
            os.kill(descendant, signal.SIGKILL)  # what the end of a container does
        eventually(lambda: not is_alive(descendant))


# --- what a child gets ----------------------------------------------------------------------------


def test_a_child_gets_variables_of_the_server_and_no_others(tmp_path: Path) -> None:
    variables = {
        "TRITON_F32_DEFAULT": "ieee",
        "LD_PRELOAD": "/tmp/evil.so",
        "PYTHONSTARTUP": "/tmp/evil.py",
        "CUDA_VISIBLE_DEVICES": "5",
        "HIP_VISIBLE_DEVICES": "5",
        "TRITON_CACHE_DIR": "/nowhere/triton",
    }
    asked = {"variables": variables, "path": ["/server"], "device": "0"}
    own = {"PATH": "/bin", "AWS_SECRET": "s", "LD_PRELOAD": "/tmp/own.so"}
    found = child_variables(asked, own=own, root=tmp_path / "code", work=tmp_path)
    assert found == {
        "PATH": "/bin",
        "TRITON_F32_DEFAULT": "ieee",
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "PYTHONPATH": f"{tmp_path / 'code'}:/server",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "RETUNED_RUNTIME": "off",
        "VLLM_PLUGINS": "",
    }


def test_a_child_gets_each_variable_that_a_runtime_reports() -> None:
    assert all(each.startswith(SERVER_VARIABLES) for each in (*reported._VARIABLES, *SWITCHES))


@pytest.mark.parametrize(("version", "safe"), [((3, 10), False), ((3, 11), True), ((3, 13), True)])
def test_a_python_without_the_safe_path_is_started_without_it(
    version: tuple[int, int], safe: bool
) -> None:
    assert ("-P" in child_words("python", version)) is safe


def test_the_peer_is_read_from_the_kernel_and_not_from_the_line() -> None:
    one, other = socket.socketpair()
    with one, other:
        data = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid: Any = struct.unpack("3i", data)[1]
        host_module._check_peer(one, frozenset({uid}))
        with pytest.raises(host_module.Declined) as caught:
            host_module._check_peer(one, frozenset({uid + 1}))
        assert caught.value.reason == "uid-refused"
