"""The server serves: whatever the folder is like, and however often somebody attaches."""

from __future__ import annotations

import errno
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retuned.runtime import Runtime, attach
from retuned.runtime.core.control_socket import ControlSocket

DEFINITION: dict[str, Any] = {
    "name": "k",
    "op_type": "k",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
}


class Tensor:
    """As much of a tensor as a slot looks at."""

    def __init__(self, length: int) -> None:
        self.shape = (length,)


def serves(runtime: Runtime) -> bool:
    slot = runtime.slot(DEFINITION, original=lambda x: x.shape[0] * 2)
    return [slot(Tensor(n)) for n in range(20)] == [n * 2 for n in range(20)]


def a_file(folder: Path) -> Path:
    folder.write_text("")
    return folder


def another_users(folder: Path) -> Path:
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    return folder


def a_loop(folder: Path) -> Path:
    folder.symlink_to(folder)
    return folder


def no_such_place(_: Path) -> Path:
    return Path("/proc/no-such/folder")  # nobody can make it, not even root


def too_long(folder: Path) -> Path:
    return folder / ("x" * 100)


@pytest.mark.parametrize("place", [a_file, another_users, a_loop, no_such_place, too_long])
def test_a_folder_that_cannot_be_used_costs_the_swaps_and_nothing_else(
    place: Callable[[Path], Path], tmp_path: Path
) -> None:
    if place is another_users and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    runtime = attach(server="s", socket_dir=place(tmp_path / "place"))
    assert runtime.socket is None
    assert serves(runtime)
    runtime.close()


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOMEM]
)
def test_a_full_disk_or_a_server_without_files_to_spare(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    def attached() -> bool:
        runtime = attach(server="s", socket_dir=tmp_path / "s")
        found = runtime.socket is None and serves(runtime)
        runtime.close()
        return found

    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", fails)
        assert attached()
    with monkeypatch.context() as full:
        full.setattr(socket, "socket", fails)
        assert attached()


def test_a_folder_that_vanishes_under_a_server(tmp_path: Path) -> None:
    runtime = attach(server="s", socket_dir=tmp_path / "s")
    assert runtime.socket is not None
    runtime.socket.unlink()
    runtime.socket.parent.rmdir()
    assert serves(runtime)
    runtime.close()


def test_no_thread_to_be_had_leaves_no_socket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", fails)
        runtime = attach(server="s", socket_dir=tmp_path)
    assert runtime.socket is None
    assert serves(runtime)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= before
    runtime.close()


def test_a_thousand_attachments_under_load_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four threads launch through whichever slot there is, and get what the original says."""
    monkeypatch.setattr(
        "retuned.runtime.core.control_socket._TICK_S", 0.001
    )  # closing waits for a tick
    original: Callable[[Tensor], int] = lambda x: x.shape[0] * 2  # noqa: E731
    serving: list[Callable[[Tensor], int]] = [original]
    stop = threading.Event()
    wrong: list[object] = []
    served = [0, 0, 0, 0]

    def load(place: int) -> None:
        n = place
        while not stop.is_set():
            n = (n + 4) % 64
            try:
                answer = serving[0](Tensor(n))
            except Exception as error:  # a server's thread would die of it
                wrong.append(error)
                return
            if answer != n * 2:
                wrong.append((n, answer))
            served[place] += 1
            if served[place] % 50 == 0:
                time.sleep(0.002)  # a server waits for its device, too

    threads = [threading.Thread(target=load, args=(place,)) for place in range(4)]
    gc.collect()  # what earlier tests left is not what these leave
    files, others = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or each step waits for four others to be done with theirs
    for thread in threads:
        thread.start()
    try:
        for _ in range(1000):
            runtime = attach(server="s", socket_dir=tmp_path)
            serving[0] = runtime.slot(DEFINITION, original=original)
            assert runtime.socket is not None
            runtime.close()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join(120)
    assert wrong == []
    assert min(served) > 0
    assert list(tmp_path.iterdir()) == []
    left = [each for each in threading.enumerate() if each not in others]
    for thread in left:
        thread.join(120)  # one that was told to end may still be about to
    assert [each.name for each in left if each.is_alive()] == []
    assert len(os.listdir("/proc/self/fd")) <= files


def test_what_is_closed_stays_closed(tmp_path: Path) -> None:
    runtime = attach(server="s", socket_dir=tmp_path)
    runtime.close()
    runtime.listen()
    assert runtime.socket is None
    assert serves(runtime)
    assert list(tmp_path.iterdir()) == []
    runtime.close()


def test_a_control_socket_that_cannot_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(RuntimeError, match="can't start"):
        ControlSocket(tmp_path / "1.sock", lambda _: {})
    assert list(tmp_path.iterdir()) == []
