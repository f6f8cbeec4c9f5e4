"""Which cores experiments may use beside a server that is bound to some."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.node.server_cores import free_cores, process_cores, server_cores

SERVER = """
import os, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
if len(sys.argv) > 2:
    ready = threading.Event()
    def other():
        os.sched_setaffinity(0, {int(sys.argv[2])})
        ready.set()
        threading.Event().wait()
    threading.Thread(target=other, daemon=True).start()
    ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""
MINE = sorted(os.sched_getaffinity(0))

cores = st.frozensets(st.integers(0, 15), min_size=1)


@contextmanager
def served(path: Path, core: int, *other: int) -> Iterator[int]:
    """A server whose main thread is bound to one core."""
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path), *map(str, other)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.stdin.close()
        child.wait(timeout=120)
        child.stdout.close()


@given(cores, st.lists(cores))
def test_experiments_always_have_cores_and_never_a_bound_servers_if_others_are_left(
    mine: frozenset[int], servers: list[frozenset[int]]
) -> None:
    free = free_cores(mine, servers)
    assert free
    assert set(free) <= mine
    assert list(free) == sorted(free)
    taken = frozenset().union(*(cores for cores in servers if not mine <= cores))
    assert not set(free) & taken or mine <= taken


def test_a_server_on_one_core_leaves_the_others() -> None:
    assert free_cores([0, 1, 2], [{1}]) == (0, 2)
    assert free_cores([0, 1, 2], []) == (0, 1, 2)
    assert free_cores([0, 1], [{0, 1, 2, 3}]) == (0, 1)  # bound to nothing that is ours alone


@pytest.mark.skipif(len(MINE) < 2, reason="needs two cores")
def test_the_cores_of_a_server_are_found_behind_its_socket(tmp_path: Path) -> None:
    with served(tmp_path / "1.sock", MINE[0]) as pid:
        assert process_cores(pid) == {MINE[0]}
        assert server_cores(tmp_path) == [frozenset({MINE[0]})]
        assert server_cores(tmp_path / "1.sock") == [frozenset({MINE[0]})]
        assert free_cores(MINE, server_cores(tmp_path)) == tuple(MINE[1:])
    assert server_cores(tmp_path) == []  # the socket is still there, nobody listens
    assert process_cores(pid) == frozenset()


@pytest.mark.skipif(len(MINE) < 2, reason="needs two cores")
def test_every_thread_of_a_server_counts(tmp_path: Path) -> None:
    with served(tmp_path / "1.sock", MINE[0], MINE[1]):
        assert server_cores(tmp_path) == [frozenset(MINE[:2])]


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.sock").write_text("")
    (tmp_path / "b.sock").symlink_to("/dev/zero")
    assert server_cores(tmp_path) == []
    assert server_cores(tmp_path / "none") == []
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "c.sock"))  # never listens
    assert server_cores(tmp_path) == []
    bound.close()
