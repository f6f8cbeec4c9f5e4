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
_CPU_GRACE_S = 5
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
# What a process that drives a device has no use for: other processes, other name spaces, modules.
_DENIED = {
    "kill": 62, "ptrace": 101, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
    "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248,
    "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
    "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "finit_module": 313, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
    "pidfd_open": 434, "pidfd_getfd": 438,
}  # fmt: skip
_SOCKET, _AF_UNIX = 41, 1
_X32 = 0x40000000
_MMAP, _MPROTECT, _CLONE, _CLONE3 = 9, 10, 56, 435
# The same numbers on every architecture. Rights to files by the version that knows them: a kernel
# refuses those that it does not know.
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_RIGHTS = ((1, (1 << 13) - 1), (2, (1 << 14) - 1), (3, (1 << 15) - 1), (5, (1 << 16) - 1))
_PROT_EXEC = 4


def enter(*, parent: int, cores: list[int]) -> None:
    """Bind to the parent's life and to cores, leave the network; done before anything is loaded."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)
    leave_network()


def leave_network() -> bool:
    """Take a network of one's own, with nothing in it; return whether that was permitted.

    It is not everywhere; seccomp shuts the same door.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    return bool(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)


def deny_files() -> int:
    """Give up opening, making and removing files, whatever the path; what is open stays open.

    Return Landlock's version; 0 where the kernel has none. Where seccomp filters, this is a second
    wall; elsewhere it is the only one before the file system.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_long
    version = int(libc.syscall(word(_LANDLOCK_CREATE), None, word(0), word(1)))
    if version < 1:
        return 0
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    known = [rights for least, rights in _LANDLOCK_RIGHTS if version >= least]
    rules = ctypes.create_string_buffer(struct.pack("<Q", known[-1]), 8)
    ruleset = int(libc.syscall(word(_LANDLOCK_CREATE), rules, word(8), word(0)))
    if ruleset < 0:
        return 0
    done = libc.syscall(word(_LANDLOCK_RESTRICT), word(ruleset), word(0))
    os.close(ruleset)
    return version if done == 0 else 0


def confine(*, memory_bytes: int, cpu_s: int) -> bool:
    """Drop the rest after loading; return whether system calls are filtered.

    `memory_bytes` is what may be added to the address space in use now.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.closerange(3, 64)
    in_use = _address_space()  # while files can still be read
    deny_files()
    with_limits = {
        resource.RLIMIT_AS: in_use + memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 3,
    }
    for which, bound in with_limits.items():
        resource.setrlimit(which, (bound, _hard(which, bound)))
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _filter_system_calls(libc, _program())


def confine_device(*, memory_bytes: int, cpu_s: int, on_device: bool) -> bool:
    """Drop what a process can do without that compiles for a device and drives it.

    A device's runtime reserves more address space than there is memory, opens files, starts the
    vendor's assembler and maps code, so neither the bound of the address space nor the list of
    allowed calls of `confine` can hold. In their place: private writable memory is bounded
    (`memory_bytes` beyond what is in use), files stay small, and calls that reach other processes,
    the network or the kernel's innards fail. Without a device the address space is bounded.
    """
    libc = ctypes.CDLL(None, use_errno=True)
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
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _filter_system_calls(libc, _device_program())


def _hard(which: int, bound: int) -> int:
    """Leave room above the bound of processor time: at the hard one the system kills without name.

    At the soft one it sends SIGXCPU, by which the parent knows what happened.
    """
    return bound + _CPU_GRACE_S if which == resource.RLIMIT_CPU else bound


def _private_memory() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[5]) * resource.getpagesize()


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _filter_system_calls(libc: ctypes.CDLL, steps: list[tuple[int, int, int, int]]) -> bool:
    if platform.machine() != "x86_64":
        return False
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
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


def _device_program() -> list[tuple[int, int, int, int]]:
    """Build the filter of a device's process: fail what is denied, allow the rest."""
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_SET, 0, 1, _X32),  # the same calls by other numbers
        (_RETURN, 0, 0, _KILL),
    ]
    for number in _DENIED.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    steps += [
        (_EQUAL, 0, 4, _SOCKET),  # first argument: family; runtimes talk to their daemons by files
        (_LOAD, 0, 0, 16),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return steps
