"""What a process gives up before it runs a stranger's Python that computes with PyTorch.

PyTorch writes code at run time and opens parts of itself when they are first used, so that neither
the closed list of system calls nor the ban on all files that guards kernels can hold. Beside what
`sandbox.confine_device` and `sandbox.deny_files` take, this filter takes every socket, new
processes and programs, and every change of a file. Linux; standard library only.
"""

from __future__ import annotations

import os
import platform
import resource
import socket

from retuned.lab.harness.sandbox import filter_system_calls
from retuned.lab.harness.syscalls import ARCHITECTURES, interpreting_program

_MOST_PROCESSES = 4096


def deny_calls(*, compiles: bool, on_device: bool) -> bool:
    """Filter system calls; return whether that is possible here.

    Parameters
    ----------
    compiles
        Whether compilers are started and files written; then only Landlock guards the files.
    on_device
        Whether a device's files are opened for writing when it is used.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return False
    steps = interpreting_program(machine, compiles=compiles, on_device=on_device)
    return filter_system_calls(steps, machine=machine)


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
