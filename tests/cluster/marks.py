"""What a cluster is known by on the machine: addresses, a link, cgroups."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SLOTS = 64
"""Most clusters at a time."""
_ENDING_S = 60.0
"""Longest wait for the last processes of a cluster that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts of the n-th cluster of this machine are reached."""

    slot: int
    """From 0 to 63; each cluster that runs at a time has its own."""

    @property
    def link(self) -> str:
        """Name of the link on the machine's side."""
        return f"retuned{self.slot}"

    @property
    def machine(self) -> str:
        """The machine, as the node and its pods see it; the API server is there."""
        return f"198.18.{self.slot}.1"

    @property
    def node(self) -> str:
        """The node, as the machine sees it."""
        return f"198.18.{self.slot}.2"

    @property
    def services(self) -> str:
        """Cluster IPs of services."""
        return f"198.18.{128 + self.slot}.0/24"

    @property
    def first_service(self) -> str:
        """The API server's cluster IP."""
        return f"198.18.{128 + self.slot}.1"

    @property
    def pods(self) -> str:
        """Addresses of pods."""
        return f"198.19.{self.slot}.0/24"


def sweep() -> None:
    """Remove the cgroups of clusters that were killed: all else of them went by itself."""
    end = time.monotonic() + _ENDING_S
    while left := [each for each in _left_behind() if not remove(each)]:
        if time.monotonic() > end:
            log.warning("still in use: %s", ", ".join(map(str, left)))
            return
        time.sleep(0.05)


def _left_behind() -> list[Path]:
    """Return the cgroups of clusters whose link is gone: their processes are gone, or ending."""
    names = [Addresses(slot=slot).link for slot in range(SLOTS)]
    gone = [name for name in names if not Path("/sys/class/net", name).exists()]
    return [each / name for name in gone for each in hierarchies() if (each / name).exists()]


def hierarchies() -> list[Path]:
    """Return where cgroups are made, of either version, or of both where a machine has both."""
    mounted = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    rows = [line.split() for line in mounted]
    return [Path(where) for _, where, kind, *_ in rows if kind in ("cgroup", "cgroup2")]


def remove(cgroup: Path) -> bool:
    """Remove a cgroup with those below it; return whether it is gone."""
    for parent, _, _ in os.walk(cgroup, topdown=False):
        try:
            os.rmdir(parent)
        except FileNotFoundError:
            pass
        except OSError:  # its last process is still ending
            return False
    return not cgroup.exists()
