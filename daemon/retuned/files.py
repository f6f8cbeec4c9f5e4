"""Safe file access: only regular files are opened, without waiting; folders are made private.

An untrusted path may name a pipe without a writer, a socket, or a device that blocks or acts
when it is opened. By a link it may name a file of `/proc` that blocks or has no size. None of
them is opened for reading. The file's kind is checked before and after opening, so that
replacing the file in between has no effect.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
_VIRTUAL = ("/proc", "/sys")
_MADE_BY_THE_KERNEL = frozenset(
    {
        "proc", "sysfs", "cgroup", "cgroup2", "tracefs", "debugfs", "securityfs", "configfs",
        "selinuxfs", "smackfs", "bpf", "pstore", "efivarfs", "binfmt_misc", "fusectl", "resctrl",
        "rpc_pipefs", "nfsd", "functionfs",
    }
)  # fmt: skip
"""Kinds of file systems without a disk or memory behind them."""
_DEVICE_AT = 2
"""Word of a line of ``mountinfo``."""


class NotPlain(OSError):
    """Raised for a path that is not a regular file; `strerror` names its kind."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EINVAL, f"it is {what}, and no regular file", str(path))


def make_private(folder: Path) -> None:
    """Make a folder and what is missing above it, all of them for this user only.

    Raises
    ------
    OSError
        If one cannot be made.
    """
    for above in reversed(folder.parents):
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_plain(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading; opening never waits.

    Parameters
    ----------
    path
        Untrusted.
    follow
        Whether its last part may be a link.

    Raises
    ------
    NotPlain
        If it is anything else than a regular file on a disk.
    OSError
        If it cannot be opened.
    ValueError
        If the path itself is none, such as one with a zero byte.
    """
    _check(path, os.stat(path, follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    number = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        _check(path, os.fstat(number))
        os.set_blocking(number, True)  # a regular file never makes anyone wait
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_plain(path: Path, *, max_bytes: int, follow: bool = True) -> bytes | None:
    """Return a regular file's content; None if it is larger than `max_bytes`.

    Reading stops soon after that, whatever size the file has or grows to.

    Raises
    ------
    OSError
        As `open_plain`.
    ValueError
        As `open_plain`.
    """
    with open_plain(path, follow=follow) as stream:
        data = stream.read(max_bytes + 1)
    return data if len(data) <= max_bytes else None


def _check(path: Path, found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise NotPlain(path, _KINDS.get(kind, "something else"))
    if found.st_dev in _virtual_devices():
        raise NotPlain(path, "a view of the kernel")


def _virtual_devices() -> frozenset[int]:
    """Return the file systems whose files are made while they are read, wherever they are mounted.

    There are more than two: the log of the kernel's traces is a regular file, and waits.
    """
    found = set(_mounted())
    for place in _VIRTUAL:
        try:
            found.add(os.stat(place).st_dev)
        except OSError:
            continue
    return frozenset(found) - {os.stat("/").st_dev}


def _mounted() -> Iterator[int]:
    """Yield the mounts of the kernel's virtual file systems; empty if mounts cannot be read."""
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, source = line.partition(b" - ")
        kind = source.partition(b" ")[0].decode("ascii", "replace")
        if kind in _MADE_BY_THE_KERNEL:
            major, _, minor = mount.split(b" ")[_DEVICE_AT].partition(b":")
            yield os.makedev(int(major), int(minor))
