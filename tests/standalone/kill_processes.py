"""What lives below a process, read from /proc: to kill at the right moment, and to find orphans."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; the start time tells it from a later one with the same number."""

    pid: int
    parent: int
    started: int
    command: str

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that only waits to be reaped does not."""
        now = _look(self.pid)
        return now is not None and now.started == self.started


def _look(pid: int) -> Process | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        command=command.replace(b"\0", b" ").decode(errors="replace"),
    )


def all_processes() -> list[Process]:
    """Every process that runs now."""
    found = (_look(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def below(pid: int) -> list[Process]:
    """Everything that descends from a process."""
    processes = all_processes()
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [p for p in processes if p.parent in parents]
        found += children
        parents = {p.pid for p in children}
    return found


def working_in(folder: Path) -> list[Process]:
    """Processes whose working folder or command line is inside a folder: compilers, labs."""
    found = []
    for process in all_processes():
        try:
            cwd = (_PROC / str(process.pid) / "cwd").readlink()
        except OSError:
            continue
        if cwd.is_relative_to(folder) or str(folder) in process.command:
            found.append(process)
    return found


def survivors(processes: list[Process], *, within_s: float) -> list[Process]:
    """Those that are still there after some time."""
    deadline = time.monotonic() + within_s
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [process for process in left if process.alive]
    return left
