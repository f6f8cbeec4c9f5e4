"""Python and JSON files of pinned wheels, read out of the wheel on the index by ranges.

A server's wheel has hundreds of megabytes, of which a contract test reads two. uv names the file's
address, as it is configured on the machine; only the parts of it that hold wanted files are read.
A wheel's RECORD names the hash of each of its files, so its own hash pins every file.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import functools
import hashlib
import io
import os
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

_INDEX_S = 120.0
_ANSWER_S = 60.0
_ATTEMPTS = 3
_BLOCK_BYTES = 1 << 20
_BLOCKS_KEPT = 8
_KEPT = (".py", ".json")


class Unavailable(Exception):
    """The index cannot be reached, or has no such file."""


@dataclass(frozen=True)
class Wheel:
    """One release of a package for CPython 3.12 on x86-64 Linux."""

    name: str
    version: str
    digest: str  # sha256 of the wheel, as the index lists it
    record: str  # sha256 of its RECORD, which names the hash of each file
    below: tuple[str, ...]  # only files whose path begins so

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"


_VLLM = ("vllm/",)
_TRITON = ("triton/",)
_TORCH = ("torch/_inductor/runtime/", "torch/cuda/", "torch/version.py")
PINNED = {
    str(wheel): wheel
    for wheel in (
        Wheel(
            "vllm",
            "0.26.0",
            "adb1e4c9b46d0dfdb094121ae5aad670a42412dd813ed4e5db069ed6a15006de",
            "e550ed7cec142a9512ef43c8c9a0adedcddec5973b0b2e97a600bfdd2864a44e",
            _VLLM,
        ),
        Wheel(
            "vllm",
            "0.33.0",
            "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
            "a860951d44545b1b68c2d1484b9a03bbde52f6eae34850a6c22741c60ac386c4",
            _VLLM,
        ),
        Wheel(
            "triton",
            "3.6.0",
            "74caf5e34b66d9f3a429af689c1c7128daba1d8208df60e81106b115c00d6fca",
            "4a069206d9c846d0ab6c60be9fce9a4aa5dafd6638800cd0004f20e905e30374",
            _TRITON,
        ),
        Wheel(
            "triton",
            "3.7.1",
            "7e40869937a68206ec70d7f25bb7ec6433cb083f9135e1f36dbd318dc449a728",
            "0180cce2b8592432ff61197222814d31a696411f94b9deed9c3063268c681f40",
            _TRITON,
        ),
        Wheel(
            "triton",
            "3.8.0",
            "e91ffa46d095b252248297292dd22bcbacd53a125a0c2eefbbbf74925a320bc3",
            "b6cd253a19443ebf6c84890b91337f54851d6062b2098570425d1d472f29590a",
            _TRITON,
        ),
        Wheel(
            "triton",
            "3.9.0",
            "5e52ab4e2f1d64f0ac494c9aa723697b793f81a91c4cae4c36608ca0bc4267bf",
            "3fb3e7c940b28f4bd6b7013add71b4a65b77350ef3e4ad141767beca9aa36512",
            _TRITON,
        ),
        Wheel(
            "torch",
            "2.11.0",
            "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
            "64d76220aff1572ba2ee949e3c4e5633a21f7aa626c634ee1730609464777fc5",
            _TORCH,
        ),
        Wheel(
            "torch",
            "2.14.0",
            "fecffb58f51fd643d213acd68da21cc3fc19bea05a3bc64b4ee55128f47a4963",
            "71327e0f3bf21ffdfd94b5db32dee6158817de3e0c0d6b0df2ca9b4208222f3d",
            _TORCH,
        ),
    )
}
NEWEST = {
    name: Wheel(name, "newest", "", "", below)
    for name, below in (("vllm", _VLLM), ("triton", _TRITON), ("torch", _TORCH))
}
"""Whatever the index has today: nothing of it is pinned, so only the lane that reports reads it."""


_absent: dict[Wheel, str] = {}
"""What was asked for in vain: each test of a run that waits for the index would wait as long."""


def unpacked(wheel: Wheel) -> Path:
    """Return a folder with the wheel's files; read from the index where it is not cached yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retuned-tests"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        if wheel not in _absent:
            return _cached(wheel if wheel.digest else _of_today(wheel), cache)
    except Unavailable as error:
        _absent[wheel] = str(error)
    pytest.skip(f"{wheel} cannot be had from the index: {_absent[wheel]}")


def _cached(wheel: Wheel, cache: Path) -> Path:
    wanted = hashlib.sha256(repr(wheel).encode()).hexdigest()[:16]
    folder = cache / f"wheel-{wheel}-{wanted}"
    with (cache / f"wheel-{wheel}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs do not unpack into one folder
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _unpack(wheel, folder)
            (folder / "ready").touch()
    return folder


@functools.cache
def _of_today(wheel: Wheel) -> Wheel:
    """Return the release that the index has today, as one that this run keeps to."""
    file = _listed(wheel.name)
    return replace(wheel, version=file.version, digest=file.digest)


def _unpack(wheel: Wheel, folder: Path) -> None:
    file = _listed(f"{wheel.name}=={wheel.version}")
    if file.digest != wheel.digest:
        raise ValueError(f"the index lists another file as {wheel}: sha256 {file.digest}")
    with zipfile.ZipFile(io.BufferedReader(_Remote(file.address), _BLOCK_BYTES)) as archive:
        hashes = _hashes(wheel, archive)
        for member in sorted(archive.infolist(), key=lambda each: each.header_offset):
            if member.filename.endswith(_KEPT) and member.filename.startswith(wheel.below):
                _write(folder, member.filename, archive.read(member), hashes)


def _hashes(wheel: Wheel, archive: zipfile.ZipFile) -> dict[str, str]:
    (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/RECORD"))
    record = archive.read(name)
    found = hashlib.sha256(record).hexdigest()
    if wheel.record and found != wheel.record:
        raise ValueError(f"{wheel} has another RECORD than the pinned one: sha256 {found}")
    rows = csv.reader(io.StringIO(record.decode()))
    return {row[0]: row[1].removeprefix("sha256=") for row in rows if row}


def _write(folder: Path, name: str, content: bytes, hashes: dict[str, str]) -> None:
    found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    if hashes.get(name) != found:
        raise ValueError(f"{name} is not what the wheel's RECORD lists")
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise ValueError(f"{name} lies outside its wheel")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


@dataclass(frozen=True)
class Listed:
    """A wheel as the index lists it."""

    version: str
    address: str
    digest: str


def _listed(requirement: str) -> Listed:
    """Ask uv, as it is set up on this machine, which wheel answers a requirement."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-deps"]
    command += ["--format", "pylock.toml", "--no-python-downloads", "--only-binary", ":all:"]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.12", "-"]
    try:
        done = subprocess.run(
            command,
            input=requirement,
            capture_output=True,
            text=True,
            timeout=_INDEX_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no answer within {_INDEX_S:g} s") from error
    if done.returncode:
        raise Unavailable(done.stderr.strip()[-300:])
    return parsed_lock(done.stdout)


def parsed_lock(lock: str) -> Listed:
    """Return the one wheel of a lock; there is none where the index is a folder of files."""
    (package,) = tomllib.loads(lock)["packages"]
    (file, *_) = package.get("wheels") or [{}]
    if "url" not in file:
        raise Unavailable("the index gives no address of a wheel")
    return Listed(package["version"], file["url"], file["hashes"]["sha256"])


class _Remote(io.RawIOBase):
    """A file on the index, of which only the blocks that are read are transferred."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0
        self._block(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        index, start = divmod(self._at, _BLOCK_BYTES)
        if self._at >= self._size:
            return 0
        part = self._block(index)[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _block(self, index: int) -> bytes:
        if index not in self._blocks:
            self._blocks[index] = self._fetch(index * _BLOCK_BYTES)
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return self._blocks[index]

    def _fetch(self, start: int) -> bytes:
        asked = {"Range": f"bytes={start}-{start + _BLOCK_BYTES - 1}"}
        request = urllib.request.Request(self._address, headers=asked)
        for wait_s in _waits():
            time.sleep(wait_s)
            try:
                with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                    if answer.status != 206:
                        raise Unavailable("the index serves no ranges of a file")
                    self._size = int(answer.headers["Content-Range"].rpartition("/")[2])
                    content: bytes = answer.read()
                    return content
            except (OSError, urllib.error.URLError) as error:
                reason = error
        raise Unavailable(f"the file cannot be read: {type(reason).__name__}")


def _waits() -> Iterator[float]:
    """Return how long to wait before each attempt: a busy index is asked again later."""
    yield from (attempt * 2.0 for attempt in range(_ATTEMPTS))


def versions(name: str) -> list[Any]:
    """Return a package's pinned versions as parameters of a test, and its newest by its mark."""
    pinned = [pytest.param(wheel, id=str(wheel)) for wheel in PINNED.values() if wheel.name == name]
    return [*pinned, pytest.param(NEWEST[name], id=f"{name}-newest", marks=pytest.mark.newest)]
