"""Sandbox of a child that runs untrusted code. Linux; standard library only.

The contract already prevents a candidate from naming a system call. This is the second barrier: no
network, no files, no new programs, no privileges, bounded memory and time, and death with the
parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple

from retuned.lab.harness import landlock
from retuned.lab.harness.syscalls import ARCHITECTURES, Step, computing_program, device_program

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 1, 38, 4
_CPU_GRACE_S = 5
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_FILTERED = "2"
_CAPABILITY_VERSION = 0x20080522


class Walls(NamedTuple):
    """Confinement of a process, as the kernel reports it."""

    system_calls: bool
    files: int
    """Landlock version; 0 if opening a forbidden folder succeeded."""

    def __bool__(self) -> bool:
        return self.system_calls or self.files > 0

    def as_dict(self) -> dict[str, bool | int]:
        return self._asdict()


def enter(*, parent: int, cores: list[int]) -> None:
    """Bind to the parent's life and to cores, and leave the network; call it before loading."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)
    leave_network()


def leave_network() -> bool:
    """Enter an empty network namespace; return whether that was permitted.

    Some systems forbid it; seccomp also blocks the network.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    return bool(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)


def deny_files(allowed: landlock.Allowed | None = None) -> int:
    """Give up opening, creating and removing files except for `allowed`; open files stay open.

    Return Landlock's version, or 0 if a test shows no effect. Where seccomp filters, this is a
    second barrier; elsewhere it is the only one before the file system.
    """
    found = landlock.restrict(allowed)
    if not found:
        return 0
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return found
    except OSError:
        return 0
    return 0


def hide_memory() -> None:
    """Hide this process's memory and environment from other processes of the same user.

    `/proc/PID/mem` and `/proc/PID/environ` then belong to root. Core dumps are off.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def confine(*, memory_bytes: int, cpu_s: int) -> Walls:
    """Drop the remaining rights after loading; return the active confinement.

    `memory_bytes` limits growth beyond the address space in use now.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.closerange(3, 64)
    in_use = _address_space()  # while files can still be read
    status = _open_status()
    files = deny_files()
    with_limits = {
        resource.RLIMIT_AS: in_use + memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 3,
    }
    for which, bound in with_limits.items():
        resource.setrlimit(which, (bound, _hard(which, bound)))
    _drop_privileges(libc)
    machine = platform.machine()
    if machine in ARCHITECTURES:
        filter_system_calls(computing_program(machine), machine=machine)
    # It stays open, because `close` is not an allowed call; only the status can be read from it.
    return Walls(system_calls=_is_filtered(status), files=files)


def confine_device(
    *, memory_bytes: int, cpu_s: int, on_device: bool, programs: bool | None = None
) -> bool:
    """Drop rights that a process does not need to compile for a device and drive it.

    Return whether the kernel reports a system-call filter. Call `deny_files` first, before a
    device's runtime starts threads.

    A device's runtime reserves more address space than there is memory, opens files, starts the
    vendor's assembler and maps code, so neither the bound of the address space nor the list of
    allowed calls of `confine` can hold. In their place: private writable memory is bounded
    (`memory_bytes` beyond what is in use), files stay small, and calls that reach other processes,
    the network or kernel internals fail. Without a device the address space is bounded.

    Parameters
    ----------
    memory_bytes
        See above.
    cpu_s
        Processor time.
    on_device
        Whether it drives one.
    programs
        Whether it may start programs; defaults to `on_device`, for the vendor's assembler.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    status = _open_status()
    which = resource.RLIMIT_DATA if on_device else resource.RLIMIT_AS
    in_use = _private_memory() if on_device else _address_space()
    with_limits = {
        which: in_use + memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 64 * 2**20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 4096 if on_device else 64,
    }
    for bound, value in with_limits.items():
        _, hard = resource.getrlimit(bound)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        most = _hard(bound, value)
        hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(bound, (value, hard))
    _drop_privileges(libc)
    machine = platform.machine()
    if machine in ARCHITECTURES:
        starts = on_device if programs is None else programs
        steps = device_program(machine, own=os.getpid(), programs=starts)
        filter_system_calls(steps, machine=machine)
    filtered = _is_filtered(status)
    if status is not None:
        os.close(status)
    return filtered


def filter_system_calls(steps: Sequence[Step], *, machine: str) -> bool:
    """Install a filter program for all threads of this process, including running ones.

    Return whether the kernel accepted it. Programs add up: the strictest result counts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    body = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(steps), ctypes.addressof(body))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # without it the kernel refuses filters
    word = ctypes.c_long
    done = libc.syscall(
        word(_SECCOMP[machine]), word(_SET_MODE_FILTER), word(_ALL_THREADS), ctypes.byref(program)
    )
    return bool(done == 0)


def _drop_privileges(libc: ctypes.CDLL) -> None:
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("<Ii", _CAPABILITY_VERSION, 0), 8)
    libc.capset(header, ctypes.create_string_buffer(24))


def _hard(which: int, bound: int) -> int:
    """Return a hard limit above the soft limit of processor time.

    At the soft limit the system sends SIGXCPU, which identifies the cause; at the hard limit it
    kills.
    """
    return bound + _CPU_GRACE_S if which == resource.RLIMIT_CPU else bound


def _private_memory() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[5]) * resource.getpagesize()


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _open_status() -> int | None:
    """Open the kernel's status file of this process; its content is generated on read."""
    try:
        return os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_filtered(status: int | None) -> bool:
    """Whether the kernel reports a filter for this process; False if it cannot be read."""
    if status is None:
        return False
    text = b""
    while chunk := os.read(status, 1 << 14):
        text += chunk
    lines = (line.partition(b":") for line in text.splitlines())
    modes = [mode.strip().decode() for name, _, mode in lines if name == b"Seccomp"]
    return modes == [_FILTERED]
