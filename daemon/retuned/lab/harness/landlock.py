"""Landlock rules: a process gives up files, connections and signals for itself and its children.

Standard library only. Open files stay open, and dropped rights cannot be regained. Only rights that
the kernel's version supports are requested, because a kernel refuses unknown ones.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple

# The same numbers on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE = sum(1 << bit for bit in (4, 5, 7, 8, 9, 12))
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ, _RUN = _READ_FILE | _READ_DIR, _READ_FILE | _READ_DIR | _EXECUTE
_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV
_ACCOUNT = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE
_OWN = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _MAKE | _REFER
_KNOWN = ((1, 13), (2, 14), (3, 15), (5, 16))
"""First version, and how many file rights it supports."""
_MOVES_SINCE, _TCP_SINCE, _SCOPES_SINCE = 2, 4, 6
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt/rocm")
_FACTS = (
    "/proc", "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/nvidia",
    "/etc/OpenCL", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/alternatives", "/run/nvidia-persistenced",
)  # fmt: skip
_TOOLS = ("cc", "gcc", "clang", "ld", "as")
_TOOL_VARIABLES = ("CC", "TRITON_PTXAS_PATH", "TRITON_CUOBJDUMP_PATH", "TRITON_NVDISASM_PATH")
_FOLDER_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME")
_PLAIN_DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm", "/dev/kfd",
    "/dev/dri",
)  # fmt: skip


class Allowed(NamedTuple):
    """Paths that stay accessible; missing paths are skipped."""

    programs: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    account: tuple[str, ...] = ()
    """Readable and writable, no creation: the process's own entries in the kernel's file system."""
    own: tuple[str, ...] = ()
    """All rights except execution."""


def version() -> int:
    """Return the kernel's Landlock version; 0 without Landlock."""
    word = ctypes.c_long
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(word(_CREATE), None, word(0), word(1))))


def for_device(*, imports: Iterable[str], read: Iterable[str], own: Iterable[str]) -> Allowed:
    """Return the paths that a process needs to compile for a device and drive it.

    `imports` are the folders of its packages, compilers among them. `read` are files to load; `own`
    are folders it writes to.
    """
    found = sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia"))
    return Allowed(
        programs=(*_SYSTEM, *_toolchains(), *imports),
        read=(*_FACTS, *read),
        devices=(*_PLAIN_DEVICES, *found),
        # CUDA names its threads by writing there, and does not start where it cannot. Not all of
        # /proc: a process of root's could set the machine's switches.
        account=(f"/proc/{os.getpid()}",),
        own=tuple(own),
    )


def _toolchains() -> list[str]:
    import shutil  # its import loads decompressors, which most children never need

    named = [os.environ.get(name, "") for name in _TOOL_VARIABLES]
    found = [shutil.which(name) for name in filter(None, (*named, *_TOOLS))]
    above = {_around(os.path.realpath(each)) for each in found if each}
    folders = [each for each in map(os.environ.get, _FOLDER_VARIABLES) if each]
    listed = [place for each in folders for place in each.split(os.pathsep) if os.path.isabs(place)]
    return sorted(each for each in {*above, *listed} if not _holds_people(each))


def _around(tool: str) -> str:
    folder = os.path.dirname(tool)
    above = os.path.dirname(folder)
    return folder if _holds_people(above) else above


def _holds_people(folder: str) -> bool:
    """Whether a folder is or contains a home directory, whose keys a compiler must not read."""
    homes = {os.path.realpath(os.path.expanduser("~")), os.path.realpath("/home")}
    place = os.path.realpath(folder)
    return any(home == place or home.startswith(place.rstrip("/") + "/") for home in homes)


def restrict(allowed: Allowed | None = None) -> int:
    """Give up all rights except those allowed, for this thread and all that it starts.

    Return Landlock's version, or 0 if the kernel does not support or refuses it.
    """
    there = version()
    if not there or (allowed and allowed.own and there < _MOVES_SINCE):
        return 0  # version 1 forbids moving a file to another folder, as caches do
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_long
    handled = (1 << max(bits for least, bits in _KNOWN if there >= least)) - 1
    rules = struct.pack("<QQQ", handled, 3, 3)  # TCP: bind, connect; sockets and signals outside
    rules = rules[: 24 if there >= _SCOPES_SINCE else 16 if there >= _TCP_SINCE else 8]
    buffer = ctypes.create_string_buffer(rules, len(rules))
    ruleset = int(libc.syscall(word(_CREATE), buffer, word(len(rules)), word(0)))
    if ruleset < 0:
        return 0
    try:
        for rights, paths in _rights(allowed or Allowed()):
            for path in paths:
                if not _allow(libc, ruleset, path, rights & handled):
                    return 0
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        done = libc.syscall(word(_RESTRICT), word(ruleset), word(0))
    finally:
        os.close(ruleset)
    return there if done == 0 else 0


def _rights(allowed: Allowed) -> tuple[tuple[int, tuple[str, ...]], ...]:
    return (
        (_RUN, allowed.programs),
        (_READ, allowed.read),
        (_DEVICE, allowed.devices),
        (_ACCOUNT, allowed.account),
        (_OWN, allowed.own),
    )


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> bool:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("<Qi", rights, handle), 12)
        word = ctypes.c_long
        answer = libc.syscall(word(_ADD), word(ruleset), word(_PATH_BENEATH), rule, word(0))
    finally:
        os.close(handle)
    return bool(answer == 0)
