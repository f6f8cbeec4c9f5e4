"""What a cluster is known by on the machine: addresses, a link, cgroups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SLOTS = 64
"""Most clusters at a time."""


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
    for slot in range(SLOTS):
        name = Addresses(slot=slot).link
        if not Path("/sys/class/net", name).exists():
            for each in hierarchies():
                remove(each / name)


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
