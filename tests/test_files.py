"""Files of strangers' choosing: whatever a path names, the answer comes at once and says why."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.catalog.user import load_definition
from retuned.cli.evidence import _file
from retuned.cli.validate import read_candidate
from retuned.errors import RetunedError
from retuned.files import NotPlain, open_plain, read_plain
from retuned.lab.audit.elf import read_bytes
from retuned.settings import load_settings
from retuned.store.policy_files import load_policies
from retuned.traces.source import open_regular
from retuned_bench.flashinfer.schema import read_documents

Reader = Callable[[Path], object]
READERS: dict[str, Reader] = {
    "definition": load_definition,
    "policy": lambda path: list(load_policies([path])),
    "candidate": lambda path: read_candidate(path, definition="rmsnorm_h64"),
    "settings": load_settings,
    "trace": open_regular,
    "object": read_bytes,
    "document": lambda path: list(read_documents(path)),
    "evidence": _file,
}
"""Everything that reads a file which a person or a stranger names."""


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def bound(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def below_sys() -> str:
    """Return a regular file of a file system that is neither /proc's nor /sys' own."""
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        place = Path(mount.split(" ")[4])
        kind = mount.partition(" - ")[2]
        listed = os.access(place, os.R_OK | os.X_OK)
        if listed and kind.startswith(("cgroup", "debugfs", "tracefs", "securityfs")):
            files = (each for each in place.iterdir() if os.access(each, os.R_OK))
            found = next((each for each in files if each.is_file()), None)
            if found is not None:
                return str(found)
    return "/sys/fs/cgroup/cgroup.procs"


ODD: dict[str, Callable[[Path], Path]] = {
    "pipe": pipe,
    "socket": bound,
    "endless device": lambda path: link(path, "/dev/zero"),
    "device": lambda _: Path("/dev/urandom"),
    "terminal": lambda path: link(path, "/dev/tty"),
    "link to a pipe": lambda path: link(path, str(pipe(path.with_name("other")))),
    "the kernel's log": lambda path: link(path, "/proc/kmsg"),
    "own memory": lambda path: link(path, "/proc/self/mem"),
    "own environment": lambda path: link(path, "/proc/self/environ"),
    "what /sys makes up": lambda path: link(path, "/sys/kernel/mm/transparent_hugepage/enabled"),
    "what is mounted below /sys": lambda path: link(path, below_sys()),
    "folder": lambda path: path.parent,
    "circle": lambda path: link(path, str(path)),
    "nothing": lambda path: path,
    "no path": lambda _: Path("a\0b"),
}


@pytest.fixture
def hurried() -> Callable[[Callable[[], object]], None]:
    """Run something that must end with a clear error, and fail where it waits."""

    def run(act: Callable[[], object]) -> None:
        errors: list[BaseException] = []

        def body() -> None:
            try:
                act()
            except BaseException as error:  # whatever it is, the test judges it
                errors.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(240)
        assert not thread.is_alive(), "the reader waits"
        assert errors, "it was read"
        assert isinstance(errors[0], RetunedError), repr(errors[0])
        assert len(str(errors[0])) < 1000

    return run


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_or_follows_into_the_kernel(
    odd: str, reader: str, tmp_path: Path, hurried: Callable[[Callable[[], object]], None]
) -> None:
    if (odd, reader) == ("folder", "policy"):
        pytest.skip("a folder of policies is read, file by file")
    path = ODD[odd](tmp_path / "file.yaml")
    if odd == "nothing" or path == Path("a\0b"):
        pass
    elif not os.path.lexists(path):
        pytest.skip("this machine has none")
    hurried(lambda: READERS[reader](path))


@pytest.mark.parametrize("reader", ["definition", "policy", "candidate", "object", "evidence"])
def test_a_sparse_file_of_terabytes_is_refused_for_its_size(
    reader: str, tmp_path: Path, hurried: Callable[[Callable[[], object]], None]
) -> None:
    huge = tmp_path / "file.yaml"
    with huge.open("wb") as stream:
        try:
            stream.truncate(2**42)
        except OSError:
            pytest.skip("this file system has no files so large")
    hurried(lambda: READERS[reader](huge))


@given(size=st.integers(0, 400), most=st.integers(0, 400))
def test_no_more_is_read_than_is_bearable(
    tmp_path_factory: pytest.TempPathFactory, size: int, most: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "plain"
    path.write_bytes(b"x" * size)
    assert read_plain(path, max_bytes=most) == (b"x" * size if size <= most else None)


def test_a_link_is_followed_unless_it_must_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    way = link(tmp_path / "link", "file")
    assert read_plain(way, max_bytes=100) == b"content"
    with raises_naming(NotPlain, "link"):
        open_plain(way, follow=False)
    with open_plain(tmp_path / "file", follow=False) as stream:
        assert os.get_blocking(stream.fileno())


def test_a_file_that_becomes_a_pipe_before_it_is_opened_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    whole = os.open

    def swapped(name: object, flags: int, *rest: object) -> int:
        if name == path and not stat.S_ISFIFO(path.stat().st_mode):
            path.unlink()
            os.mkfifo(path)
        return whole(name, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swapped)
    with raises_naming(NotPlain, "pipe"):
        open_plain(path)


def test_a_refusal_leaves_no_open_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(NotPlain):
            open_plain(tmp_path)
        with pytest.raises(NotPlain):
            open_plain(Path("/proc/self/environ"))
    assert len(os.listdir("/proc/self/fd")) == before
