"""Namespaces in which a node lives: its own processes, mounts, links and rules.

Everything a node makes (overlay mounts, bridges, iptables chains, containers) is made in there, so
the kernel takes it away when the first process ends, however that came about. The machine itself
gets one link to it with three routes, which vanish with their other end, and one cgroup, which
`close` removes, or `marks.sweep` where nobody was left to close. Addresses are of 198.18.0.0/15,
which is set aside for tests of networks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.cluster.marks import SLOTS, Addresses, hierarchies, remove
from tests.plane.control_plane import Failed

_INIT = Path(__file__).with_name("init.py")
_GONE_S = 120.0
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Starts a program that the kernel ends when the thread that started it ends."""
_TUNABLES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet wants of the kernel and would change for the whole machine."""


class Namespace:
    """Namespaces with their first process; gone at the end of the block.

    Parameters
    ----------
    folder
        Logs go to its ``logs``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._cgroups: list[Path] = []
        self._process: subprocess.Popen[str] | None = None
        self._addresses: Addresses | None = None

    def __enter__(self) -> Self:
        try:
            self._unshare()
            self._link()
            self._hide_tunables()
            self._make_cgroups()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what runs inside -------------------------------------------------------------------------

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> None:
        """Start a program; its output goes to ``logs/NAME.log``."""
        program = shutil.which(argv[0])
        if program is None:
            raise Failed(f"{argv[0]} is not on the PATH")
        given = {"PATH": os.environ["PATH"], "HOME": str(self._folder), **(env or {})}
        self._ask({"start": name, "argv": [program, *argv[1:]], "env": given})

    def stop(self, name: str, *, with_signal: int = signal.SIGTERM, within_s: float = 10) -> None:
        """Stop a program and wait for its end; past `within_s` it is killed."""
        self._ask({"stop": name, "signal": int(with_signal), "within_s": within_s})

    def ended(self, name: str) -> bool:
        """Return whether a program ended by itself."""
        return self._ask({"status": name})["status"] is not None

    def tail(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self._logs / f"{name}.log").read_text("utf-8", "replace")[-3000:]

    def run(self, *argv: str, within_s: float = 240) -> str:
        """Run a program inside to its end and return what it said.

        Raises
        ------
        Failed
            With its words, if it failed.
        """
        inside = ("nsenter", f"--target={self._first}", "--mount", "--net", "--pid", "--", *argv)
        return _run(*inside, within_s=within_s)

    @property
    def addresses(self) -> Addresses:
        """Where this cluster is reached."""
        assert self._addresses is not None, "asked before there is a link"
        return self._addresses

    @property
    def cgroup(self) -> str:
        """Parent of all the node's cgroups, as a path in each hierarchy."""
        return f"/{self.addresses.link}"

    # --- making and taking away -------------------------------------------------------------------

    def _unshare(self) -> None:
        flags = ("--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
        with (self._logs / "init.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*WITH_PARENT, "unshare", *flags, sys.executable, "-I", _INIT, self._logs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._first = _child_of(self._process)
        self.start("ready", "true")  # answered once the first process listens
        # A node's volumes are seen in its containers; private to the machine already.
        self.run("mount", "--make-rshared", "/")

    def _link(self) -> None:
        for slot in range(SLOTS):
            here = Addresses(slot=slot)
            pair = ("type", "veth", "peer", "name", "node", "netns", str(self._first))
            try:  # two that begin at the same time: one of them is told that the name is taken
                _run("ip", "link", "add", here.link, *pair)
            except Failed as refused:
                if "File exists" not in str(refused):
                    raise
            else:
                self._addresses = here
                break
        else:
            raise Failed(f"{SLOTS} clusters run on this machine already")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{here.node}/30", "dev", "node")
        self.run("ip", "link", "set", "node", "up")
        self.run("ip", "route", "add", "default", "via", here.machine)
        self.run("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
        _run("ip", "address", "add", f"{here.machine}/30", "dev", here.link)
        _run("ip", "link", "set", here.link, "up")
        for range_ in (here.pods, here.services):
            _run("ip", "route", "add", range_, "via", here.node, "dev", here.link)

    def _hide_tunables(self) -> None:
        folder = self._folder / "tunables"
        folder.mkdir(exist_ok=True)
        for name, value in _TUNABLES.items():
            if Path("/proc/sys", name).exists():
                file = folder / name.replace("/", ".")
                file.write_text(f"{value}\n", "utf-8")
                self.run("mount", "--bind", str(file), f"/proc/sys/{name}")

    def _make_cgroups(self) -> None:
        self._cgroups = [each / self.cgroup[1:] for each in hierarchies()]
        for each in self._cgroups:
            each.mkdir(exist_ok=True)

    def close(self) -> None:
        """End everything inside and wait until the machine is as it was.

        Raises
        ------
        Failed
            If something stays behind; says what.
        """
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # takes the first process along, and that the rest
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        if self._addresses is not None:
            link = Path("/sys/class/net", self._addresses.link)
            _until(lambda: not link.exists(), f"the link {link.name}")
        for each in self._cgroups:
            _until(functools.partial(remove, each), f"the cgroup {each}")

    def _ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"the node's first process is gone:\n{self.tail('init')}") from None
        answered = process.stdout.readline()
        if not answered:
            raise Failed(f"the node's first process is gone:\n{self.tail('init')}")
        answer: dict[str, Any] = json.loads(answered)
        if "error" in answer:
            raise Failed(f"{line}: {answer['error']}")
        return answer


def _run(*argv: str, within_s: float = 240) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=within_s, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _child_of(process: subprocess.Popen[str]) -> int:
    """Return the one child of a process, as the machine numbers it, once there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + _GONE_S
    while not (found := children.read_text("utf-8").split()):
        if process.poll() is not None or time.monotonic() > end:
            raise Failed("no namespaces can be made here: unshare failed")
        time.sleep(0.01)
    return int(found[0])


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _GONE_S
    while not true():
        if time.monotonic() > end:
            raise Failed(f"{what} of the node is still there")
        time.sleep(0.05)
