"""The real daemon as a process between a real server and a folder of traces, and its many deaths.

Everything outside lives on: the server counts, traces keep landing, a person approves what waits.
Only the daemon is killed, by SIGKILL, at moments named by what is going on, each with a random
delay; then it is started again. `check` says whether all of it adds up.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from tests.standalone.kill_processes import Process, below, survivors, working_in
from tests.standalone.kill_server import DEFINITION, ROWS

from retuned.ports import SlotState, Stored
from retuned.runtime_client.client import RuntimeSocket
from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.standalone.context import RecordKind
from retuned.store.approvals import Approvals
from retuned.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[2]
WINDOW_S = 5
BASELINE = 5
DRIFTED = 4
PATIENCE_S = 240.0
"""Longest wait for what must come."""
_POLICY = ROOT / "policies" / "laptop-demo.yaml"
_TRACE_EVERY_S = 0.25
_DIE_S = 30.0
_UNDECIDED = {"Pending", "Validating", "AwaitingApproval", "Superseded"}
"""Where proposals are that nobody decided on: a later one replaces one that waits."""
_COMMITTED = re.compile(r"epoch (\d+), (\S+)$", re.MULTILINE)


class KillWorld:
    """One state folder, one server, one daemon at a time.

    Parameters
    ----------
    folder
        Where everything lies; empty.
    seed
        Of the delays.
    """

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder = folder.resolve()
        folder.mkdir(parents=True)
        self.rng = random.Random(seed)
        self.kills: list[str] = []
        self.orphans: list[Process] = []
        self._seen: dict[str, str] = {}
        self._dropped = 0
        self._turned: int | None = None
        self._next_trace_s = 0.0
        self._hour_s = int(time.time()) // 3600 * 3600 - 7200
        for name in ("state", "traces", "sockets", "cache"):
            (folder / name).mkdir(mode=0o700)
        self.config = _write_config(folder)
        self.store = SqliteStore(folder / "state")
        self.swapper = RuntimeSocket(folder / "sockets", timeout_s=60.0)
        places = (str(folder / "sockets"), str(folder / "cache"))
        self.server = self._python(
            "tests.standalone.kill_server", *places, log="server.log", talk=subprocess.PIPE
        )
        assert _line(self.server.stdout) == "ready\n"
        self.daemon: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End every process; called whatever happened."""
        for process in (self.daemon, self.server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout) if process is not None else ():
                if pipe is not None:
                    pipe.close()
        self.store.close()

    def start(self) -> None:
        """Start the daemon on whatever is on disk."""
        words = ("retuned.cli", "run", "--config", str(self.config))
        self.daemon = self._python(*words, log="daemon.log")

    def kill(self, moment: str) -> None:
        """Kill -9; note who outlived it."""
        assert self.daemon is not None
        assert self.daemon.poll() is None, f"the daemon ended by itself: {self.log()[-2000:]}"
        family = below(self.daemon.pid)
        self.daemon.kill()
        self.daemon.wait()
        # a child may have been born after the look around: it works in our folder
        family += [p for p in working_in(self.folder) if p.pid != self.server.pid]
        self.orphans += survivors(family, within_s=_DIE_S)
        self.kills.append(moment)
        for stored in self.store.list(RecordKind.PROPOSAL):
            self._seen[stored.id] = stored.phase

    def tick(self) -> None:
        """Let the world go on for a moment: a trace lands, a person looks at what waits."""
        now_s = time.monotonic()
        if now_s >= self._next_trace_s and self._traffic_goes_on():
            self._next_trace_s = now_s + _TRACE_EVERY_S
            self._drop(ROWS[0] if self._turned is None else ROWS[1])
        stored = self.proposal()
        if stored is not None and stored.phase == "AwaitingApproval" and _age_s(stored) > 0.4:
            self._approve(stored)
        time.sleep(0.005)

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.tick()

    def wait(self, what: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
        """Let time pass until something holds; False if it does not come."""
        until_s = time.monotonic() + within_s
        while not what():
            if time.monotonic() > until_s:
                return False
            self.tick()
        return True

    def live_and_die(self, moment: str) -> None:
        """Start, wait until it is the moment, and a random time more, and kill."""
        self.start()
        holds, longest_s = self._moments()[moment]
        found = self.wait(holds, within_s=15.0)
        self.go_on(self.rng.uniform(0.0, longest_s))
        self.kill(moment if found else f"{moment}, which did not come")

    def roll_back(self) -> None:
        """Ask for the way back, as ``retuned rollback`` does."""
        stored = self.proposal()
        assert stored is not None
        at = datetime.now(UTC)
        Approvals(self.store).request("rollback", target=stored.id, who="ada", at=at)

    def proposal(self) -> Stored | None:
        """Return the first proposal: the one that the person looks at.

        Another may follow, when a refined hypothesis finds a still better kernel; whether one does
        is up to the clock of the machine, and nobody decides on it.
        """
        found = self.store.list(RecordKind.PROPOSAL)
        return min(found, key=lambda stored: stored.created_at, default=None)

    @property
    def traces_dropped(self) -> int:
        """Trace files that landed so far."""
        return self._dropped

    def phase(self) -> str:
        """Return the phase of that proposal; empty before there is one."""
        stored = self.proposal()
        return stored.phase if stored is not None else ""

    def phases(self, kind: RecordKind) -> dict[str, str]:
        """Phase by id."""
        return {stored.id: stored.phase for stored in self.store.list(kind)}

    def slot(self) -> SlotState:
        """Return what the server says of its slot."""
        (state,) = self.swapper.slots()
        return state

    def swapped(self) -> bool:
        """Whether the loop has come to its end: a swap in force that is watched."""
        return (
            self.phase() in {"Analyzing", "Watching", "Promoted"} and self.slot().active is not None
        )

    def rested(self) -> bool:
        """Whether nothing is believed, tested or measured any more."""
        busy = {"open", "testing", "running", "won"}
        return not busy & {
            *self.phases(RecordKind.HYPOTHESIS).values(),
            *self.phases(RecordKind.EXPERIMENT).values(),
        }

    def log(self) -> str:
        """All that the daemon has logged in all its lives."""
        return (self.folder / "daemon.log").read_text(errors="replace")

    def commits(self) -> list[tuple[int, str]]:
        """Return (epoch, artifact) of every order that the server carried out, as it logged it."""
        text = (self.folder / "server.log").read_text()
        return [(int(epoch), artifact) for epoch, artifact in _COMMITTED.findall(text)]

    def stop_server(self) -> dict[str, Any]:
        """End the server and return what it counted."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        answer: dict[str, Any] = json.loads(_line(self.server.stdout))
        self.server.wait(timeout=120)
        return answer

    def _moments(self) -> dict[str, tuple[Callable[[], bool], float]]:
        """When to kill, and how much later at most, seconds."""
        return {
            "start": (lambda: True, 2.5),
            "trace": (lambda: bool(self.phases(RecordKind.BATCH)), 0.3),
            "window": (lambda: len(self.phases(RecordKind.WINDOW)) > BASELINE, 0.3),
            "belief": (lambda: bool(self.phases(RecordKind.HYPOTHESIS)), 0.5),
            "lab": (lambda: self._runs("retuned.experiment"), 2.0),
            "compiler": (lambda: self._runs("cc1plus"), 0.1),
            "candidate": (lambda: self._runs("harness/child.py"), 1.5),
            "finding": (lambda: bool(self.phases(RecordKind.FINDING)), 0.5),
            "proposal": (lambda: bool(self.phases(RecordKind.PROPOSAL)), 0.2),
            "approval": (lambda: bool(self.phases(RecordKind.DECISION)), 0.1),
            "order": (lambda: bool(self.phases(RecordKind.ORDER)), 0.1),
            "watching": (self.swapped, 0.5),
        }

    def _traffic_goes_on(self) -> bool:
        """Whether a trace is due; traffic drifts only once the baseline was learned.

        A baseline may take more windows than asked for: those that the server did not count, such
        as the first, are left out beside those that it did.
        """
        if self._turned is None and self._dropped >= BASELINE and self.phases(RecordKind.DETECTOR):
            self._turned = self._dropped
        if self._turned is None:
            return self._dropped < 2 * BASELINE
        return self._dropped < self._turned + DRIFTED

    def _runs(self, program: str) -> bool:
        return self.daemon is not None and any(program in p.command for p in below(self.daemon.pid))

    def _python(
        self, module: str, *words: str, log: str, talk: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        with (self.folder / log).open("ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    # the server loads nothing but what this daemon has signed
                    "RETUNED_TRUSTED_KEY": str(self.folder / "state" / "keys"),
                },
                stdin=talk,
                stdout=talk,
                stderr=stderr,
                text=True,
            )

    def _drop(self, rows: int) -> None:
        """Write a trace as a profiler does: under another name first. It lies in a past window."""
        number = self._dropped
        self._dropped += 1
        path = self.folder / "traces" / f"{number:03}.json"
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps({"traceEvents": _events(rows, number)}))
        at_s = self._hour_s + number * WINDOW_S + 2
        os.utime(partial, (at_s, at_s))
        partial.rename(path)

    def _approve(self, stored: Stored) -> None:
        gate = self.store.get(RecordKind.GATE, stored.id)
        if gate is None:
            return
        Approvals(self.store).give(
            SwapDecision(
                proposal=stored.id,
                digest=stored.body["artifact"],
                decision=DecisionKind.APPROVE,
                user="ada",
                at=stored.created_at.replace(microsecond=0).fromtimestamp(time.time(), UTC),
                policy_digest=gate.body["policy_digest"],
            )
        )


def check(world: KillWorld, *, end: str) -> None:
    """Everything adds up: nothing lost, nothing done twice, nothing left behind."""
    assert world.orphans == [], "children outlived the daemon"
    assert not [line for line in world.log().splitlines() if "Traceback" in line], world.log()
    proposals = world.phases(RecordKind.PROPOSAL)
    assert world._seen.keys() <= proposals.keys(), "a proposal was lost"
    assert world.phase() == end, proposals
    others = Counter(proposals.values()) - Counter([end])
    assert others.keys() <= _UNDECIDED, proposals
    _check_trail(world)
    _check_orders(world)
    _check_experiments(world)
    _check_files(world)


def _check_trail(world: KillWorld) -> None:
    """Each step of a proposal was written once."""
    once = {"proposed", "gate-approved", "approved", "rolling-back", "rolled-back"}
    for id, phase in world.phases(RecordKind.PROPOSAL).items():
        steps = Counter(event.what for event in world.store.events(id=id))
        assert {what: n for what, n in steps.items() if what in once and n > 1} == {}, steps
        if phase not in _UNDECIDED:
            assert {"proposed", "approved", "swapped"} <= steps.keys()


def _check_orders(world: KillWorld) -> None:
    """The server carried out each order's epoch once, in order, and what it runs is the last."""
    orders = [stored.body for stored in world.store.list(RecordKind.ORDER)]
    expected = [(order["epoch"], order["artifact"] or "original") for order in orders]
    assert world.commits() == expected
    epochs = [epoch for epoch, _ in expected]
    assert epochs == sorted(set(epochs))
    *before, last = world.phases(RecordKind.ORDER).values()
    assert set(before) <= {"superseded", "undone"}
    assert last == "done"
    slot = world.slot()
    assert (slot.epoch, slot.active) == (orders[-1]["epoch"], orders[-1]["artifact"])
    assert slot.tripped == ""


def _check_experiments(world: KillWorld) -> None:
    """Each experiment ended once; each candidate has one verdict in it, with its evidence."""
    store = world.store
    for id, phase in world.phases(RecordKind.EXPERIMENT).items():
        ends = [e.what for e in store.events(id=id) if e.what.startswith("experiment-")]
        assert ends == ["experiment-done"], (id, phase, ends)
    assert "running" not in world.phases(RecordKind.EXPERIMENT).values()
    pairs = Counter[tuple[str, str]]()
    for stored in store.list(RecordKind.FINDING):
        verdict = stored.body["verdict"]
        pairs[stored.body["experiment"], verdict["candidate"]] += 1
        assert stored.id == f"{stored.body['experiment']}/{verdict['candidate']}"
        assert store.get_blob(verdict["evidence"])
    assert set(pairs.values()) == {1}
    assert remeasured(world) <= len(world.kills)
    busy = {"open", "testing"}
    assert not busy & set(world.phases(RecordKind.HYPOTHESIS).values())


def _check_files(world: KillWorld) -> None:
    """Every trace was counted once, and every artifact is what it says."""
    dropped = world.traces_dropped
    assert dropped >= BASELINE + DRIFTED
    assert Counter(world.phases(RecordKind.BATCH).values()) == {"folded": dropped}
    assert len(world.phases(RecordKind.WINDOW)) == dropped
    artifacts = list((world.folder / "state" / "lab" / "artifacts").glob("[!.]*"))
    assert artifacts
    for folder in artifacts:
        body = json.loads((folder / "artifact.json").read_text())
        assert body["digest"] == f"sha256:{folder.name}"
        binary = (folder / body["binary"]).read_bytes()
        assert hashlib.sha256(binary).hexdigest() == body["binary_sha256"]


def remeasured(world: KillWorld) -> int:
    """Count finalists whose raw numbers exist more than once: measured, and lost in a kill."""
    measured = Counter[tuple[str, str]]()
    for path in (world.folder / "state" / "lab" / "evidence").glob("*.json"):
        body = json.loads(path.read_text())
        measured[body["plan"], body["candidate"]] += body["final"] is not None
    return sum(measured.values()) - sum(count > 0 for count in measured.values())


def _policy(folder: Path) -> Path:
    """Write the demo's policy without a live proof: this server does not mark its steps."""
    text = _POLICY.read_text(encoding="utf-8")
    assert "liveProof: {mode: required" in text
    policy = folder / "policy.yaml"
    policy.write_text(text.replace("liveProof: {mode: required", "liveProof: {mode: observe"))
    return policy


def _write_config(folder: Path) -> Path:
    config = folder / "retuned.yaml"
    settings = {
        "state_dir": str(folder / "state"),
        "watch_dirs": [str(folder / "traces")],
        "socket_dir": str(folder / "sockets"),
        "policy_files": [str(_policy(folder))],
        "window_s": WINDOW_S,
        "settle_s": 0.1,
        "baseline_windows": BASELINE,
        "detector_preset": "demo",
        "max_candidates": 3,
        "max_experiment_s": 6.0,
        "finalists": 1,
        "shadow_every": 5,
        "observe_poll_s": 0.1,
        "steer_poll_s": 0.05,
        "metrics_port": 0,
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    return config


def _events(rows: int, number: int) -> list[dict[str, Any]]:
    rng = random.Random(number)
    args = {
        "Input Dims": [[rows, 128], [128, 128], [128]],
        "Input type": ["float", "signed char", "float"],
        "Input Strides": [[128, 1], [128, 1], [1]],
    }
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"retuned::{DEFINITION.partition('_n')[0]}",
            "pid": 1,
            "tid": 1,
            "ts": 1000.0 + 500 * i,
            "dur": rows * (2.0 + 0.02 * rng.random()),
            "args": {"External id": i + 1, **args},
        }
        for i in range(400)
    ]


def _age_s(stored: Stored) -> float:
    return (datetime.now(UTC) - stored.created_at).total_seconds()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()
