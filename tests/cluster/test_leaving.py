"""A cluster leaves nothing behind on the machine, whichever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.plane.control_plane import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.cluster", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False
    )


def processes_of(folder: Path) -> list[str]:
    """Return the command lines that name a folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(words)
    return found


def links() -> set[str]:
    return {each.name for each in Path("/sys/class/net").glob("retuned*")}


def mounts_of(folder: Path) -> list[str]:
    mounted = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    return [line for line in mounted if str(folder) in line]


def tunables() -> list[str]:
    names = ("vm/overcommit_memory", "kernel/panic", "net/ipv4/ip_forward")
    return [Path("/proc/sys", name).read_text("utf-8") for name in names]


def soon(seen: Callable[[], bool]) -> bool:
    end = time.monotonic() + 120
    while not seen() and time.monotonic() < end:
        time.sleep(0.1)
    return seen()


def cgroups() -> list[Path]:
    found = [*Path("/sys/fs/cgroup").glob("retuned*"), *Path("/sys/fs/cgroup").glob("*/retuned*")]
    return sorted(found)


@pytest.fixture
def up(programs: Path, tmp_path: Path) -> Iterator[Path]:
    done = python("up", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "kubeconfig"
    yield tmp_path
    assert python("down", str(tmp_path)).returncode == 0


def test_down_takes_away_all_that_up_made(programs: Path, tmp_path: Path) -> None:
    before = (links(), tunables(), cgroups())
    assert python("up", str(tmp_path)).returncode == 0
    assert processes_of(tmp_path)
    assert mounts_of(tmp_path) == [], "what a node mounts is its own business"
    assert tunables() == before[1]
    assert len(links()) == len(before[0]) + 1
    done = python("down", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert processes_of(tmp_path) == []
    assert (links(), tunables(), cgroups()) == before
    assert not (tmp_path / "kubeconfig").exists()


def test_a_keeper_that_is_killed_takes_its_cluster_along(up: Path) -> None:
    before = links()
    os.kill(int((up / "keeper.pid").read_text()), signal.SIGKILL)
    assert soon(lambda: processes_of(up) == []), processes_of(up)
    assert soon(lambda: len(links()) == len(before) - 1)
    assert mounts_of(up) == []
    assert python("down", str(up)).returncode == 0
    assert len(cgroups()) == len(links()) * len({each.parent for each in cgroups()})


def test_a_second_cluster_runs_beside_the_first(up: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:  # fmt: skip
    other = tmp_path_factory.mktemp("other")
    try:
        assert python("up", str(other)).returncode == 0
        assert len(links()) >= 2
    finally:
        assert python("down", str(other)).returncode == 0
