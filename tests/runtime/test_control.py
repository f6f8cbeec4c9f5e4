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

from retuned.runtime import control as control_module
from retuned.runtime.control import MAX_REQUEST_BYTES, ControlSocket, peer_uid
from retuned.runtime.spec import Refused


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
    connection.settimeout(10)
    connection.connect(str(path))
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


def test_more_peers_than_places_are_turned_away_and_places_come_back(
    control: ControlSocket,
) -> None:
    held = [connect(control.path) for _ in range(control_module.MAX_CONNECTIONS)]
    for connection in held:
        connection.sendall(b'{"op":"ping"}\n')
        assert connection.recv(100)
    assert not ping(control.path)
    for connection in held:
        connection.close()
    deadline = time.monotonic() + 10
    while not ping(control.path):
        assert time.monotonic() < deadline


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
    assert turns.acquire(timeout=10)
    assert turns.acquire(timeout=10)
    assert ping(control.path)
    control.close()


def test_what_lies_at_the_path_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c.sock"
    path.parent.mkdir()
    path.write_text("left over")
    control = ControlSocket(path, answer)
    assert ping(path)
    control.close()
    assert not path.exists()
    with pytest.raises(OSError, match="longer than"):
        ControlSocket(tmp_path / ("x" * 120), answer)
