"""What this machine offers to keep candidates in, asked of the kernel itself."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_ASK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from retuned.lab.harness import sandbox
network = sandbox.leave_network()
files = sandbox.deny_files()
os.write(1, json.dumps({"network": network, "files": files}).encode())
"""
_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Walls around a candidate, as they stand on this machine."""

    system_calls: bool
    """Seccomp filters what a child may ask of the kernel; x86-64 only."""
    network: bool
    """A child gets a network of its own, with nothing in it."""
    files: int
    """Version of Landlock with which a child gives up all files; 0 where the kernel has none."""
    bubblewrap: bool
    """The program `bwrap` is there; children give up their rights themselves and do not need it."""

    def as_dict(self) -> dict[str, bool | int]:
        """Return plain data, for the evidence."""
        return asdict(self)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the walls that are missing, as a sentence names them."""
        found = {
            "no seccomp filter": self.system_calls,
            "no network namespace": self.network,
            "no Landlock": bool(self.files),
        }
        return tuple(name for name, there in found.items() if not there)


@cache
def isolation() -> Isolation:
    """Ask once per process: in a child, because what it gives up does not come back."""
    answer: dict[str, object] = {}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK, str(_ROOT)],
            capture_output=True,
            timeout=_WAIT_S,
            check=False,
            cwd="/",
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        pass  # what cannot be asked is not counted on
    seccomp = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    return Isolation(
        system_calls=seccomp and platform.machine() == "x86_64",
        network=bool(answer.get("network")),
        files=int(str(answer.get("files") or 0)),
        bubblewrap=shutil.which("bwrap") is not None,
    )
