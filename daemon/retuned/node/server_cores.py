"""Which cores the watched servers run on, so that experiments keep off them.

A server's processes are known by their control sockets: the kernel names the process that listens
(``SO_PEERCRED``), and the cores that each of its threads may use.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")
"""Process, user and group id."""
_PATIENCE_S = 1.0


def free_cores(all_cores: Iterable[int], servers: Sequence[AbstractSet[int]]) -> tuple[int, ...]:
    """Return the cores that no server is bound to, in order; all of them where none is left.

    A server that may run on every core is bound to none: keeping off it would leave nothing.

    Parameters
    ----------
    all_cores
        Cores that experiments may use at most.
    servers
        Cores of each server's process.

    Examples
    --------
    >>> free_cores(range(4), [{0, 1}, {0, 1, 2, 3}])
    (2, 3)
    >>> free_cores([0, 1], [{0}, {1}])
    (0, 1)
    """
    mine = frozenset(all_cores)
    taken = frozenset[int]().union(*(cores for cores in servers if not mine <= cores))
    return tuple(sorted(mine - taken or mine))


def server_cores(path: Path) -> list[frozenset[int]]:
    """Return the cores of every process that listens behind a path; never raises.

    A process that has died, or that this user or namespace cannot see, is left out.

    Parameters
    ----------
    path
        A control socket, or a folder of them.
    """
    return [cores for pid in sorted(server_processes(path)) if (cores := process_cores(pid))]


def server_processes(path: Path) -> frozenset[int]:
    """Return every process that listens behind a path; never raises.

    Parameters
    ----------
    path
        A control socket, or a folder of them.
    """
    found = (_listener(socket_path) for socket_path in _sockets(path))
    return frozenset(pid for pid in found if pid is not None)


def process_cores(pid: int) -> frozenset[int]:
    """Return the cores that any thread of a process may use; empty if it is gone."""
    cores: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return frozenset()
    for thread in threads:
        try:
            cores |= os.sched_getaffinity(int(thread))
        except OSError:  # it ended just now
            continue
    return frozenset(cores)


def _sockets(path: Path) -> Iterator[Path]:
    try:
        found = sorted(path.glob("*.sock")) if path.is_dir() else [path]
        for one in found:
            if stat.S_ISSOCK(one.lstat().st_mode):
                yield one
    except OSError:
        return


def _listener(path: Path) -> int | None:
    """Return the process that listens on a socket; None without one, or if it is not visible."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(str(path))
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    pid = int(_CREDENTIALS.unpack(raw)[0])
    return pid or None  # 0: a process of another namespace
