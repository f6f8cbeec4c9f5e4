"""A cluster to try things on: ``python -m tests.cluster up DIR``, and ``down DIR`` afterwards.

``up`` leaves one process behind that keeps the cluster; when it ends, however it does, the cluster
ends. ``lacks`` says what this machine is missing, and tries what it may do; ``packages`` names what
is not installed. Exit codes: 0 done, 2 wrong usage, 4 something is missing on this machine.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.cluster.cluster import Cluster
from tests.cluster.marks import sweep
from tests.cluster.needs import lacks, missing_packages
from tests.plane.control_plane import ROOT, tools

_UP_S = 900.0
_DOWN_S = 400.0


def main(arguments: Sequence[str]) -> int:
    """Do what is asked and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "keep", "lacks", "packages"))
    parser.add_argument("folder", type=Path, nargs="?", help="keys, logs and data of the cluster")
    options = parser.parse_args(arguments)
    if options.what == "packages":
        sys.stdout.write("".join(f"{each}\n" for each in missing_packages()))
        return 0
    missing = lacks()
    if options.what == "lacks" or (missing and options.what != "down"):
        for each in missing:
            _say(f"missing: {each}")
        return 4 if missing else 0
    if options.folder is None:
        parser.error(f"{options.what} needs a folder")
    folder: Path = options.folder.resolve()
    return {"up": up, "down": down, "keep": keep}[options.what](folder)


def up(folder: Path) -> int:
    """Start a process that keeps a cluster, and return when its node is ready."""
    if (folder / "keeper.pid").exists():
        _say(f"{folder} holds a cluster: python -m tests.cluster down {folder}")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", "keep", str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + _UP_S
    while not (folder / "kubeconfig").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            keeper.terminate()
            keeper.wait(_DOWN_S)
            _say((folder / "keeper.log").read_text("utf-8", "replace")[-3000:])
            return 1
        time.sleep(0.1)
    sys.stdout.write(f"{folder / 'kubeconfig'}\n")
    return 0


def keep(folder: Path) -> int:
    """Keep a cluster until told to stop."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    programs = tools()
    assert programs is not None, "looked for before"
    pid, kubeconfig = folder / "keeper.pid", folder / "kubeconfig"
    pid.write_text(str(os.getpid()), "utf-8")
    try:
        with Cluster(folder, programs) as cluster:
            ready = folder / "kubeconfig.new"
            ready.write_text(cluster.plane.admin().read_text("utf-8"), "utf-8")
            ready.rename(kubeconfig)
            while True:
                signal.pause()
    finally:
        kubeconfig.unlink(missing_ok=True)
        pid.unlink()


def down(folder: Path) -> int:
    """End the process that keeps the cluster of a folder, and wait until it has cleaned up."""
    sweep()
    process = _keeper(folder)
    if process is None:
        _say(f"no cluster runs in {folder}")
        for name in ("keeper.pid", "kubeconfig"):
            (folder / name).unlink(missing_ok=True)
        return 0
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], _DOWN_S)
    finally:
        os.close(process)
    if not ended:
        _say(f"it does not end; see {folder / 'keeper.log'}")
        return 1
    return 0


def _keeper(folder: Path) -> int | None:
    """Return the process that keeps a folder's cluster; None if there is none by now."""
    try:
        pid = int((folder / "keeper.pid").read_text("utf-8"))
        process = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the number may be another process's by now, or that of a dead one whom nobody buried
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if str(folder).encode() in words:
        return process
    os.close(process)
    return None


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
