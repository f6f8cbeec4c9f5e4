"""Isolation features of this machine, detected by trying them."""

from __future__ import annotations

import json
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
filtered = sandbox.confine_device(memory_bytes=2**28, cpu_s=20, on_device=False)
files = sandbox.deny_files()
try:
    os.kill(os.getpid(), 0)  # harmless, and forbidden by the filter
    filtered = False
except PermissionError:
    pass
found = {"network": network, "files": files, "system_calls": filtered}
os.write(1, json.dumps(found).encode())
"""
_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    system_calls: bool
    """Whether seccomp filters system calls: a test call was refused."""
    network: bool
    files: int
    """Landlock version with which a child gives up file access; 0 without Landlock."""
    bubblewrap: bool
    """Whether `bwrap` is installed; children drop their rights themselves and do not need it."""

    def as_dict(self) -> dict[str, bool | int]:
        return asdict(self)

    @property
    def missing(self) -> tuple[str, ...]:
        found = {
            "no seccomp filter": self.system_calls,
            "no network namespace": self.network,
            "no Landlock": bool(self.files),
        }
        return tuple(name for name, there in found.items() if not there)


@cache
def isolation() -> Isolation:
    """Detect once per process, in a child, because dropped rights cannot be regained."""
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
        pass  # a feature that cannot be tested counts as missing
    return Isolation(
        system_calls=answer.get("system_calls") is True,
        network=answer.get("network") is True,
        files=int(str(answer.get("files") or 0)),
        bubblewrap=shutil.which("bwrap") is not None,
    )
