"""A server is met as whatever user its image runs; anybody else's process is not believed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from retuned.runtime.core.control_socket import allowed_uids
from retuned.sidecar.sockets import PodSocket


def test_whoever_owns_a_socket_of_the_pod_is_believed_as_long_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_ALLOWED_UIDS", "4711")
    path = tmp_path / "7.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        uid = 1234 if os.geteuid() == 0 else os.geteuid()
        os.chown(path, uid, -1)
        sockets = PodSocket(tmp_path)
        assert sockets.processes() == [path]
        assert allowed_uids() == {0, uid}, "and nobody that was named before"
        path.unlink()
        assert sockets.processes() == []
        assert allowed_uids() == {0}
