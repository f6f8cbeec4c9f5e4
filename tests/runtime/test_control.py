from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.runtime.core import control_socket as control_module
from retuned.runtime.core.control_socket import (
    MAX_REQUEST_BYTES,
    ControlSocket,
    allowed_uids,
    peer_uid,
)
from retuned.runtime.schema import Refused


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    if request.get("op") == "ping":
        return {"pong": True}
    if request.get("op") == "crash":
        raise ZeroDivisionError("an operation with a bug")
    raise Refused("unknown-op", detail="ping or crash")


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlSocket]:
    control = ControlSocket(tmp_path_factory.mktemp("s") / "c.sock", answer)
    yield control
    control.close()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(120)
    deadline = time.monotonic() + 120
    while True:
        try:
            connection.connect(str(path))
        except BlockingIOError:  # more peers wait than there is room for
            if time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.01)
        else:
            return connection


def exchange(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Send, close our side, and read whatever comes back."""
    with connect(path) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            return []  # it had seen enough
        received = b""
        while True:
            try:
                chunk = connection.recv(1 << 16)
            except ConnectionResetError:
                break
            if not chunk:
                break
            received += chunk
    return [json.loads(line) for line in received.splitlines()]


def ping(path: Path) -> bool:
    return exchange(path, b'{"op":"ping"}\n') == [{"ok": True, "pong": True}]


def test_requests_are_answered_in_order_on_one_connection(control: ControlSocket) -> None:
    answers = exchange(control.path, b'{"op":"ping"}\n{"op":"no"}\n{"op":"ping"}\n')
    assert [a["ok"] for a in answers] == [True, False, True]
    assert answers[1]["reason"] == "unknown-op"


def test_only_the_owner_may_open_the_socket(control: ControlSocket) -> None:
    mode = control.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from(
            [
                b"\n",
                b'{"op":',
                b'{"op":"ping"}',
                b'{"op":"ping"}\n',
                b"[" * 20_000 + b"\n",
                b'{"op":' + b"9" * 5000 + b"}\n",
                b"\xff\xfe\n",
                b'"text"\n',
                b"NaN\n",
                b'{"op":["ping"]}\n',
            ]
        ),
        max_size=6,
    )
)
def test_garbage_is_answered_or_cut_off_and_the_next_peer_is_served(
    control: ControlSocket, pieces: list[bytes]
) -> None:
    for reply in exchange(control.path, b"".join(pieces)):
        assert reply["ok"] is True or reply["reason"] in ("bad-request", "unknown-op")
    assert ping(control.path)


def test_a_line_without_end_is_cut_off(control: ControlSocket) -> None:
    assert exchange(control.path, b"x" * (MAX_REQUEST_BYTES + (1 << 17))) == []
    assert exchange(control.path, b"x" * (MAX_REQUEST_BYTES + 10) + b"\n") == []
    assert ping(control.path)


def test_an_operation_with_a_bug_is_an_answer(control: ControlSocket) -> None:
    (reply,) = exchange(control.path, b'{"op":"crash"}\n')
    assert (reply["ok"], reply["reason"]) == (False, "runtime-error")
    assert ping(control.path)


def test_half_a_line_is_cut_off_in_time_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "REQUEST_TIMEOUT_S", 0.3)
    control = ControlSocket(tmp_path / "c.sock", answer)
    with connect(control.path) as slow:
        slow.sendall(b'{"op":')
        assert ping(control.path)
        assert slow.recv(10) == b"", "cut off without an answer"
    control.close()


def test_busy_peers_keep_their_places_and_places_come_back(tmp_path: Path) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def slow(request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("op") == "slow":
            begun.release()
            assert go.wait(200)
        return {"pong": True}

    control = ControlSocket(tmp_path / "c.sock", slow)
    held = [connect(control.path) for _ in range(control_module.MAX_CONNECTIONS)]
    for connection in held:
        connection.settimeout(120)
        connection.sendall(b'{"op":"slow"}\n')
        assert begun.acquire(timeout=120)
    assert not ping(control.path), "all are at work, and none is cut off"
    go.set()
    for connection in held:
        assert connection.recv(100)
        connection.close()
    deadline = time.monotonic() + 120
    while not ping(control.path):
        assert time.monotonic() < deadline
    control.close()


def test_silent_peers_cannot_shut_the_daemon_out(control: ControlSocket) -> None:
    """Whoever holds every place and says nothing, or half a line, gives way to who asks."""
    held = [connect(control.path) for _ in range(control_module.MAX_CONNECTIONS)]
    for connection in held[::2]:
        connection.sendall(b'{"op":"pi')
    assert ping(control.path)
    assert ping(control.path)
    assert held[0].recv(10) == b"", "the one that was silent for longest went"
    for connection in held:
        connection.close()


def test_a_flood_of_connections_costs_a_bounded_number_of_threads_and_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = os.geteuid() + 1000
    uids = iter([stranger] * 300)
    housekeeping = threading.Semaphore(0)
    control = ControlSocket(
        tmp_path / "c.sock",
        answer,
        idle=housekeeping.release,
        credentials=lambda _: next(uids, os.geteuid()),
    )
    before = threading.active_count()
    flood = [connect(control.path) for _ in range(300)]
    assert threading.active_count() <= before + control_module.MAX_CONNECTIONS + 1
    deadline = time.monotonic() + 120
    while not ping(control.path):
        assert time.monotonic() < deadline
    for connection in flood:
        connection.close()
    assert housekeeping.acquire(timeout=120)
    control.close()
    told = [r for r in caplog.records if "rejected" in r.getMessage()]
    assert 1 <= len(told) <= 10


def test_a_stream_of_peers_keeps_housekeeping_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "_TICK_S", 0.02)
    turns = threading.Semaphore(0)
    control = ControlSocket(
        tmp_path / "c.sock",
        answer,
        idle=turns.release,
        credentials=lambda _: os.geteuid() + 1000,
    )
    while turns.acquire(blocking=False):
        pass
    seen, deadline = 0, time.monotonic() + 120
    while seen < 2:
        for _ in range(5):
            connect(control.path).close()  # before the wait for a peer ever ends
        seen += turns.acquire(blocking=False)
        assert time.monotonic() < deadline, "it is never its turn"
    control.close()


def test_a_peer_of_another_user_is_turned_away(tmp_path: Path) -> None:
    stranger = os.geteuid() + 1000
    control = ControlSocket(tmp_path / "c.sock", answer, credentials=lambda _: stranger)
    assert exchange(control.path, b'{"op":"ping"}\n') == []
    control.close()


def test_the_kernel_says_who_the_peer_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


def test_idle_time_is_used_and_a_bug_there_ends_nothing(tmp_path: Path) -> None:
    turns = threading.Semaphore(0)

    def idle() -> None:
        turns.release()
        raise ZeroDivisionError("housekeeping with a bug")

    control = ControlSocket(tmp_path / "c.sock", answer, idle=idle)
    assert turns.acquire(timeout=120)
    assert turns.acquire(timeout=120)
    assert ping(control.path)
    control.close()


def test_an_old_socket_is_replaced_and_ours_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    control = ControlSocket(path, answer)
    assert ping(path)
    control.close()
    assert not path.exists()
    with raises_naming(OSError, "x" * 120):
        ControlSocket(tmp_path / ("x" * 120), answer)


@pytest.mark.parametrize("what", ["file", "link", "folder", "pipe"])
def test_what_is_no_socket_is_somebodys_and_stays(tmp_path: Path, what: str) -> None:
    path, precious = tmp_path / "c.sock", tmp_path / "precious"
    precious.write_text("mine")
    precious.chmod(0o644)
    if what == "file":
        path.write_text("mine")
    elif what == "link":
        path.symlink_to(precious)
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with raises_naming(OSError, str(path)):
        ControlSocket(path, answer)
    assert os.path.lexists(path)
    assert (precious.read_text(), stat.S_IMODE(precious.stat().st_mode)) == ("mine", 0o644)


def test_what_took_the_sockets_place_is_not_removed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    control = ControlSocket(path, answer)
    path.unlink()
    path.write_text("somebody else's")
    control.close()
    assert path.read_text() == "somebody else's"


def test_a_folder_of_another_user_is_no_place_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    if tmp_path.stat().st_uid == 0:
        os.chown(tmp_path, 12345, -1)
    with raises_naming(OSError, str(tmp_path), "12345"):
        ControlSocket(tmp_path / "c.sock", answer)


def test_a_folder_that_others_may_write_to_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    ControlSocket(folder / "c.sock", answer).close()
    assert "chmod 700" in caplog.text
    caplog.clear()
    folder.chmod(0o1777)
    ControlSocket(folder / "c.sock", answer).close()
    assert "chmod" not in caplog.text


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_has_not_are_no_request(control: ControlSocket, word: str) -> None:
    (reply,) = exchange(control.path, f'{{"op":"ping","x":{word}}}\n'.encode())
    assert (reply["ok"], reply["reason"]) == (False, "bad-request")


def test_a_user_who_was_named_is_let_in_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_ALLOWED_UIDS", "7001, 7002,x,-1,")
    assert allowed_uids() == {7001, 7002}
    uids = iter([7001, 7003, 7002])
    control = ControlSocket(tmp_path / "c.sock", answer, credentials=lambda _: next(uids))
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o666, "the kernel says who connects"
    assert [ping(control.path) for _ in range(3)] == [True, False, True]
    control.close()


def test_without_names_only_this_user_and_root_are_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETUNED_ALLOWED_UIDS", raising=False)
    uids = iter([7001, 0, os.geteuid()])
    control = ControlSocket(tmp_path / "c.sock", answer, credentials=lambda _: next(uids))
    assert [ping(control.path) for _ in range(3)] == [False, True, True]
    control.close()
