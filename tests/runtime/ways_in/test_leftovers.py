"""Sockets of processes that are gone, and names that somebody else uses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retuned.runtime import attach
from retuned.runtime.core import control_socket
from retuned.runtime.core.control_socket import MIN_AGE_S, own_path, sweep

OTHER = """
import socket, sys, time
with socket.socket(socket.AF_UNIX) as other:
    other.bind(sys.argv[1])
    other.listen()
    print("listens", flush=True)
    time.sleep(280)
"""
LATER = MIN_AGE_S + 1.0


def dead(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    return path


@pytest.mark.parametrize("name", ["123.sock", "1-0a1b2c3d.sock"])
def test_a_dead_processes_socket_is_removed(name: str, tmp_path: Path) -> None:
    path = dead(tmp_path / name)
    young = path.stat().st_ctime + MIN_AGE_S / 2
    assert sweep(tmp_path, now=young) == 0, "too young: it may be about to listen"
    assert path.exists()
    assert sweep(tmp_path, now=time.time() + LATER) == 1
    assert list(tmp_path.iterdir()) == []


def test_one_that_listens_stays_even_if_nobody_accepts(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(tmp_path / "7.sock"))
        alive.listen(0)
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            for waiting in (one, two):  # its backlog is full now
                waiting.setblocking(False)
                waiting.connect_ex(str(tmp_path / "7.sock"))
            assert sweep(tmp_path, now=time.time() + LATER) == 0
    assert (tmp_path / "7.sock").exists()


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "1.sock").write_text("a file")
    (tmp_path / "2.sock").mkdir()
    (tmp_path / "3.sock").symlink_to(dead(tmp_path / "daemon.sock"))
    dead(tmp_path / "x1.sock")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert sweep(tmp_path, now=time.time() + LATER) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_name_taken_anew_in_that_very_moment_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dead(tmp_path / "9.sock")
    os.utime(path, (1e9, 1e9))
    fresh = socket.socket(socket.AF_UNIX)

    def refuses(_: Path) -> bool:  # between the look and the removal a new process comes
        path.unlink()
        fresh.bind(str(path))
        fresh.listen()
        return True

    monkeypatch.setattr(control_socket, "_refuses", refuses)
    with fresh:
        assert sweep(tmp_path, now=time.time() + LATER) == 0
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))


def test_a_folder_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == 0
    (tmp_path / "file").touch()
    assert sweep(tmp_path / "file") == 0


def test_the_control_thread_sweeps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "MIN_AGE_S", -1.0)
    path = dead(tmp_path / "4194305.sock")  # above every pid
    runtime = attach(server="demo", socket_dir=tmp_path)
    deadline = time.monotonic() + 120
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()
    runtime.close()


def test_a_name_that_another_process_answers_to_is_not_taken(tmp_path: Path) -> None:
    """Two containers of a pod share the folder, and both servers are process 1."""
    path = tmp_path / f"{os.getpid()}.sock"
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"listens\n"
        found = own_path(path)
        assert found != path
        assert found.parent == path.parent
        assert control_socket._NAME.fullmatch(found.name)
        runtime = attach(server="demo", socket_dir=tmp_path)
        assert runtime.socket is not None
        assert runtime.socket != path
        runtime.close()
        assert path.exists(), "still theirs"
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_our_own_and_dead_ones_names_are_taken(tmp_path: Path) -> None:
    path = tmp_path / f"{os.getpid()}.sock"
    assert own_path(path) == path
    assert own_path(dead(path)) == path
    path.unlink()
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))
        ours.listen()
        assert own_path(path) == path
