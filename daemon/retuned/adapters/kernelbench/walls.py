"""What a process gives up before it runs a stranger's Python that computes with PyTorch.

PyTorch writes code at run time and opens parts of itself when they are first used, so that neither
the closed list of system calls nor the ban on all files that guards kernels can hold. Beside what
`sandbox.confine_device` and `sandbox.deny_files` take, this filter takes every socket, new
processes and programs, and every change of a file. Linux; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import struct

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP, _SET_MODE_FILTER, _ALL_THREADS = 317, 1, 1
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_ARCH_X86_64, _X32 = 0xC000003E, 0x40000000
_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_CLONE_THREAD = 0x00010000
_OPEN, _OPENAT, _CLONE = 2, 257, 56
_MOST_PROCESSES = 4096
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# x86-64 numbers. Everybody's: the network, other processes, rights, limits.
_DENIED = {
    "shmget": 29, "connect": 42, "bind": 49, "listen": 50, "socket": 41, "kill": 62, "ptrace": 101,
    "setpgid": 109, "setsid": 112, "tkill": 200, "setuid": 105, "setgid": 106,
    "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "unshare": 272, "setns": 308,
    "sched_setscheduler": 144, "setpriority": 141, "mount": 165, "umount2": 166, "chroot": 161,
}  # fmt: skip
# Of a process that compiles nothing: new processes and programs, and every change of a file.
_DENIED_ALWAYS = {
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "creat": 85, "truncate": 76,
    "rename": 82, "renameat": 264, "renameat2": 316, "mkdir": 83, "mkdirat": 258, "rmdir": 84,
    "link": 86, "linkat": 265, "unlink": 87, "unlinkat": 263, "symlink": 88, "symlinkat": 266,
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93,
    "lchown": 94, "fchownat": 260, "mknod": 133, "mknodat": 259, "utime": 132, "utimes": 235,
    "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "memfd_create": 319,
}  # fmt: skip
_ABSENT = {"clone3": 435, "openat2": 437}


def deny_calls(*, compiles: bool, on_device: bool) -> bool:
    """Filter system calls; return whether that is possible here.

    Parameters
    ----------
    compiles
        Whether compilers are started and files written; then only Landlock guards the files.
    on_device
        Whether a device's files are opened for writing when it is used.
    """
    if platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("<HBBI", *step) for step in _program(compiles, on_device))
    body = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code) // 8, ctypes.addressof(body))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    word = ctypes.c_long
    done = libc.syscall(
        word(_SECCOMP), word(_SET_MODE_FILTER), word(_ALL_THREADS), ctypes.byref(program)
    )
    return bool(done == 0)


def limit_processes() -> None:
    """Bound the number of this user's processes and threads; without effect for root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard == resource.RLIM_INFINITY or hard > _MOST_PROCESSES:
        resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_PROCESSES, _MOST_PROCESSES))


def standing(*, compiles: bool) -> list[str]:
    """Try what is forbidden; return which walls do not stand."""
    open_walls = []
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
        open_walls.append("network")
    except OSError:
        pass
    own = os.environ.get("TMPDIR", "")  # where a compiler may write
    folders = ("/tmp", "/var/tmp", "/dev/shm", "/", os.path.expanduser("~"))
    for folder in (each for each in folders if each != own):
        path = f"{folder}/.retuned-{os.getpid()}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            open_walls.append("files")
            os.unlink(path)
            break
        except OSError:
            continue
    if not compiles:
        try:
            if os.fork() == 0:
                os._exit(0)
            open_walls.append("processes")
        except OSError:
            pass
    return open_walls


def _program(compiles: bool, on_device: bool) -> list[tuple[int, int, int, int]]:
    """Build the filter: fail what is denied, allow the rest."""
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_SET, 0, 1, _X32),  # the same calls by other numbers
        (_RETURN, 0, 0, _KILL),
    ]
    for number in _ABSENT.values():  # the C library falls back to calls whose arguments are seen
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for number in (_DENIED if compiles else {**_DENIED, **_DENIED_ALWAYS}).values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    if not compiles:
        steps += _only_if_set(_CLONE, argument=0, bits=_CLONE_THREAD)
        if not on_device:
            steps += _only_if_clear(_OPEN, argument=1, bits=_WRITING)
            steps += _only_if_clear(_OPENAT, argument=2, bits=_WRITING)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _only_if_set(number: int, *, argument: int, bits: int) -> list[tuple[int, int, int, int]]:
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, 16 + 8 * argument),
        (_SET, 0, 1, bits),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
    ]


def _only_if_clear(number: int, *, argument: int, bits: int) -> list[tuple[int, int, int, int]]:
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, 16 + 8 * argument),
        (_SET, 1, 0, bits),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
    ]
