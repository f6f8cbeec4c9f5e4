"""The reader of wheels: only what is wanted is transferred, and only what is pinned is kept."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.servers import wheels
from tests.servers.wheels import Wheel, unpacked

FILES = {
    "server/__init__.py": b"VERSION = 1\n",
    "server/table.json": b"{}",
    "server/big.so": os.urandom(8 << 20),
    "other/__init__.py": b"",
}
_RECORD = "server-1.dist-info/RECORD"


def listed(files: dict[str, bytes]) -> bytes:
    rows = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(content)}")
    return "\n".join([*rows, f"{_RECORD},,"]).encode()


def packed(files: dict[str, bytes], record: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, each in files.items():
            archive.writestr(name, each)
        archive.writestr(_RECORD, record)
    return content.getvalue()


class Index:
    """A file behind HTTP, and how many bytes of it were sent."""

    def __init__(self, content: bytes, *, ranges: bool) -> None:
        self.content = content
        self.ranges = ranges
        self.sent_bytes = 0
        self.address = ""


@contextmanager
def serving(content: bytes, *, ranges: bool = True) -> Iterator[Index]:
    index = Index(content, ranges=ranges)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            part = index.content[int(first) : int(last) + 1] if index.ranges else b"all"
            index.sent_bytes += len(part)
            self.send_response(206 if index.ranges else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(index.content)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output free of requests."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    index.address = f"http://127.0.0.1:{server.server_address[1]}/server.whl"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


RECORD = listed(FILES)
WHEEL = Wheel("server", "1", "pinned", hashlib.sha256(RECORD).hexdigest(), ("server/",))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheels, "_waits", lambda: iter([0.0]))
    monkeypatch.setattr(wheels, "_absent", {})
    wheels._of_today.cache_clear()


def read_from(index: Index, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(wheels, "_listed", lambda _: wheels.Listed("1", index.address, "pinned"))
    return unpacked(wheel)


def test_only_python_and_json_below_the_wanted_folders_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(packed(FILES, RECORD)) as index:
        folder = read_from(index, WHEEL, monkeypatch)
    kept = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    assert kept == {"ready", "server/__init__.py", "server/table.json"}
    assert index.sent_bytes < len(index.content) / 2


def test_a_wheel_that_is_kept_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(packed(FILES, RECORD)) as index:
        folder = read_from(index, WHEEL, monkeypatch)
        before = index.sent_bytes
        assert read_from(index, WHEEL, monkeypatch) == folder
        assert index.sent_bytes == before


@pytest.mark.parametrize("wheel", [replace(WHEEL, digest="other"), replace(WHEEL, record="other")])
def test_another_file_than_the_pinned_one_is_refused(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(packed(FILES, RECORD)) as index, pytest.raises(ValueError, match="sha256"):
        read_from(index, wheel, monkeypatch)


def test_a_file_that_the_record_does_not_list_so_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = FILES | {"server/table.json": b"[]"}
    with serving(packed(changed, RECORD)) as index, raises_naming(ValueError, "table.json"):
        read_from(index, WHEEL, monkeypatch)


def test_an_index_without_ranges_skips_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(packed(FILES, RECORD), ranges=False) as index,
        pytest.raises(pytest.skip.Exception, match="no ranges"),
    ):
        read_from(index, WHEEL, monkeypatch)
    wheels._absent.clear()  # as another run does
    with serving(packed(FILES, RECORD)) as index:
        assert (read_from(index, WHEEL, monkeypatch) / "ready").exists()


def test_an_index_that_had_no_wheel_is_asked_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(packed(FILES, RECORD), ranges=False) as index:
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception):
                read_from(index, WHEEL, monkeypatch)
        assert index.sent_bytes == len(b"all")


def test_the_newest_release_is_kept_by_its_own_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = Wheel("server", "newest", "", "", ("server/",))
    with serving(packed(FILES, RECORD)) as index:
        folder = read_from(index, newest, monkeypatch)
        assert read_from(index, newest, monkeypatch) == folder
    assert folder.name.startswith("wheel-server-1-")


def test_a_lock_without_an_address_is_unavailable() -> None:
    lock = '[[packages]]\nname = "server"\nwheels = [{ path = "server.whl" }]\n'
    with pytest.raises(wheels.Unavailable):
        wheels.parsed_lock(lock)
