"""What a child gives up before it runs a stranger's code. Linux; standard library only.

The contract already leaves a candidate no way to name a system call. This is the second wall: no
network, no files, no new programs, no privileges, bounded memory and time, and death with the
parent.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_PR_SET_DUMPABLE = 4
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CLONE_THREAD = 0x00010000
_EPERM, _ENOSYS = 1, 38
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_ARCH_X86_64 = 0xC000003E
_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
# x86-64 numbers: what an interpreter needs that computes, waits and speaks over two pipes.
_SYSCALLS = {
    "read": 0, "write": 1, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "munmap": 11, "brk": 12, "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39,
    "exit": 60, "gettid": 186, "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219,
    "clock_gettime": 228, "exit_group": 231, "set_robust_list": 273, "membarrier": 324, "rseq": 334,
    "sigaltstack": 131, "prctl": 157,
}  # fmt: skip
_MMAP, _MPROTECT, _CLONE, _CLONE3 = 9, 10, 56, 435
_PROT_EXEC = 4


def enter(*, parent: int, cores: list[int]) -> None:
    """Bind to the parent's life and to cores, leave the network; done before anything is loaded."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)
    # Not permitted everywhere; seccomp below shuts the same door.
    if libc.unshare(_CLONE_NEWNET) != 0:
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def confine(*, memory_bytes: int, cpu_s: int) -> bool:
    """Drop the rest after loading; return whether system calls are filtered.

    `memory_bytes` is what may be added to the address space in use now.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.closerange(3, 64)
    with_limits = {
        resource.RLIMIT_AS: _address_space() + memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 3,
    }
    for which, bound in with_limits.items():
        resource.setrlimit(which, (bound, bound))
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _filter_system_calls(libc)


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _filter_system_calls(libc: ctypes.CDLL) -> bool:
    if platform.machine() != "x86_64":
        return False
    code = b"".join(struct.pack("<HBBI", *step) for step in _program())
    body = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code) // 8, ctypes.addressof(body))
    return bool(libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)


def _program() -> list[tuple[int, int, int, int]]:
    """Build the filter: allow the list, memory without execution, threads; kill on all else."""
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    for number in _SYSCALLS.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number in (_MMAP, _MPROTECT):  # third argument: protection, must lack EXEC
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, 32),
            (_SET, 0, 1, _PROT_EXEC),
            (_RETURN, 0, 0, _KILL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps += [
        (_EQUAL, 0, 4, _CLONE),  # first argument: flags, must ask for a thread
        (_LOAD, 0, 0, 16),
        (_SET, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _KILL),
        # The C library falls back to clone, whose flags can be seen.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        # Asking for the time zone, locale or terminal must not look like an attack.
        (_RETURN, 0, 0, _KILL),
    ]
    return steps
