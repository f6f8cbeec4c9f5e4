"""The host of the server's container as a process: only the delivered packages, another folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import retuned

DELIVERED = ("__init__.py", "runtime", "tunables")
"""What the Dockerfile copies for the server's container."""


def deliver(folder: Path) -> Path:
    """Copy what the init container copies; return the folder."""
    source = Path(str(retuned.__file__)).parent
    target = folder / "retuned"
    target.mkdir(parents=True)
    for name in DELIVERED:
        if (source / name).is_dir():
            shutil.copytree(
                source / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copyfile(source / name, target / name)
    return folder


def eventually(found: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.02)


def children_of(pid: int) -> set[int]:
    """Return the living child processes of a process."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found |= {int(each) for each in (task / "children").read_text().split()}
    return {each for each in found if is_alive(each)}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class HostProcess:
    """A running host."""

    process: subprocess.Popen[bytes]
    path: Path
    work: Path
    log: Path

    @property
    def children(self) -> set[int]:
        return children_of(self.process.pid)

    def ended(self, *, within_s: float = 30.0) -> int:
        """Wait for its end; return its exit code."""
        return self.process.wait(within_s)


@contextlib.contextmanager
def host_process(
    folder: Path,
    *,
    uids: str | None = None,
    children: int = 2,
    wait_s: float = 60.0,
    python: str = sys.executable,
) -> Iterator[HostProcess]:
    """Run a host as the manifest does."""
    code, work = deliver(folder / "code"), folder / "server-work"
    work.mkdir()
    path, log = folder / "host.sock", folder / "host.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                python, "-I", str(code / "retuned/tunables/host.py"), "--socket", str(path),
                "--work", str(work), "--children", str(children), "--wait-s", str(wait_s),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(work),
                "RETUNED_ALLOWED_UIDS": str(os.geteuid()) if uids is None else uids,
            },
            cwd="/",
            stderr=file,
        )  # fmt: skip
    try:
        yield HostProcess(process, path, work, log)
    finally:
        left = children_of(process.pid)
        process.kill()
        process.wait()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
