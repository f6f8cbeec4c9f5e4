"""The story told by ``retuned demo``: one whole turn of the loop on this machine, in scenes.

The server, its client and the daemon are separate processes. The daemon is the one that users run
(``retuned run``); it reads only the server's trace folder and control socket. This file simulates
the rest: traffic that changes, a person who approves, a kernel whose output becomes wrong, or in
the other story kernels that harm the server. It measures nothing of a swap: the daemon's live
proofs do, and the report shows their verdicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import httpx

from retuned.demo.journal import Journal
from retuned.demo.options import DemoOptions
from retuned.demo.outcome import Plot
from retuned.demo.processes import Child, Cores, DemoFailed
from retuned.demo.throughput import Meter, timeline_of
from retuned.ports import Event
from retuned.runtime_client.client import RuntimeSocket
from retuned.stages.watch import WatchReason
from retuned.store.sqlite import SqliteStore

_POLL_S = 0.1
_HARMFUL_COST = 4.0
"""Time of a swapped launch over that of its kernel alone: more than any gain of an experiment."""
T = TypeVar("T")


class Story:
    """One run of the demo.

    Parameters
    ----------
    options
        Scenes and people.
    say
        Takes one line of progress for the terminal.
    """

    def __init__(self, options: DemoOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._started_s = time.monotonic()
        self._started_wall_s = time.time()
        self._phases: list[dict[str, Any]] = []
        self._rates: dict[str, float] = {}
        self._kept: set[tuple[str, str]] = set()
        """What served after its live proof, or at the end: kernel and artifact."""

    def run(self) -> dict[str, Any]:
        """Tell it; return the object that ``retuned demo --json`` prints.

        Raises
        ------
        DemoFailed
            If a scene does not come to its end; the message carries the log of who failed.
        """
        with ExitStack() as stack:
            self._cast(stack)
            self._learn_baseline()
            self._drift()
            self._experiment()
            self._note_kept()
            rollback: dict[str, Any] = {}
            if self._kept:
                self._enter("swapped")
                self._rates["after_swap"] = self._measure()
            if self._kept and self._options.plot is Plot.HELPFUL:
                rollback = self._break_and_watch()
            self._enter("after rollback")
            self._rates["after_rollback"] = self._measure()
            self._note_kept()
            self._client.say("stop")
            totals = self._client.answer(timeout_s=90)
            return self._tell(totals, rollback)

    # --- scenes -------------------------------------------------------------------------------

    def _cast(self, stack: ExitStack) -> None:
        """Start the server, its client and the daemon."""
        options = self._options
        cores = Cores.choose(wide=options.device == "cuda")
        folder = options.folder
        self._say(
            f"server on {_named(cores.server)}, client, daemon and lab on {_named(cores.lab)}"
        )
        self._server = stack.enter_context(
            Child("server", _server_arguments(options, cores), log_dir=folder, cores=cores.server)
        )
        port = self._server.answer(timeout_s=120)["port"]
        self._url = f"http://127.0.0.1:{port}"
        self._client = stack.enter_context(
            Child(
                "client",
                [
                    *("-m", "retuned.demo.client", "--url", self._url),
                    *("--seed", str(options.seed), "--in-flight", str(options.in_flight)),
                    *("--scale", "gpu" if options.device == "cuda" else "cpu"),
                ],
                log_dir=folder,
                cores=cores.lab,
            )
        )
        self._client.answer(timeout_s=60)
        self._meter = Meter(self._client)
        self._daemon = stack.enter_context(
            Child(
                "daemon",
                ["-m", "retuned.cli", "run", "--config", str(options.config)],
                log_dir=folder,
                cores=cores.lab,
            )
        )
        self._store = SqliteStore(folder / "state")
        self._journal = Journal(self._store)
        self._swapper = RuntimeSocket(folder / "sockets")

    def _learn_baseline(self) -> None:
        self._enter("chat")
        self._say("traffic of a chat service; the daemon learns what is normal")
        self._wait(
            "the daemon to learn the baseline",
            lambda: self._journal.event("baseline-learned"),
            timeout_s=self._options.baseline_timeout_s,
        )
        self._rates["before_drift"] = self._measure()

    def _drift(self) -> None:
        self._enter("code, drifted")
        self._client.say("phase code")
        self._client.answer(timeout_s=60)
        self._say("traffic becomes that of a code assistant; the daemon gets no notice of it")
        self._rates["after_drift"] = self._measure()
        drift = self._wait(
            "the daemon to see the drift",
            self._journal.drift,
            timeout_s=self._options.drift_timeout_s,
        )
        self._say(f"drift: {drift['sentence']}")

    def _experiment(self) -> None:
        """Wait for experiments and live proofs; approve what is proposed, or wait for who does."""
        self._enter("experiments and live proofs")
        options = self._options
        progress: object = None
        deadline = busy_s = time.monotonic()
        told: set[str] = set()
        while True:
            if self._journal.busy() or self._journal.open():
                busy_s = time.monotonic()
            for proposal in self._journal.gated():
                if proposal["id"] not in told:
                    told.add(proposal["id"])
                    self._ask(proposal)
            for id, sentence in self._journal.verdicts():
                if f"proof {id}" not in told:
                    told.add(f"proof {id}")
                    self._say(f"live proof {id[7:19]}: {sentence}")
            if (now := self._journal.progress()) != progress:
                progress, deadline = now, time.monotonic() + options.experiments_timeout_s
            if self._settled(rested=time.monotonic() - busy_s > options.rest_s):
                return
            if time.monotonic() > deadline and (options.approve or not self._journal.gated()):
                if self._journal.swaps() and not self._journal.open():
                    return
                raise DemoFailed(f"no swap was proven in time:\n{self._daemon.tail()}")
            self._daemon.check()
            self._server.check()
            time.sleep(_POLL_S)

    def _settled(self, *, rested: bool) -> bool:
        """Whether each swap is kept or gone, and what the plot waits for is there."""
        if self._journal.open():
            return False
        if self._options.plot is Plot.HARMFUL:
            return self._journal.withdrawn()
        return rested and bool(self._journal.promoted())

    def _ask(self, proposal: Mapping[str, Any]) -> None:
        speedup = proposal["speedup"]
        self._say(
            f"proposal {proposal['id'][7:19]}: {proposal['definition']} {speedup['point']:.2f}x"
            f" (at least {speedup['lower']:.2f}x), risk {proposal['risk']}"
        )
        if self._options.approve is not None:
            self._options.approve(str(proposal["id"]))
            return
        self._say(
            "waits for you, in another terminal: "
            f".venv/bin/retuned approve {proposal['id'][7:19]} --config {self._options.config}"
        )

    def _note_kept(self) -> None:
        """Note what the server runs now, by the server's answer and not by the daemon's record."""
        for slot in self._swapper.slots():
            if slot.active is not None and not slot.bypassed and not slot.tripped:
                self._kept.add((slot.definition, slot.active))

    def _break_and_watch(self) -> dict[str, Any]:
        """Let the swapped kernel turn wrong; the daemon must find it and go back by itself."""
        self._enter("fault injected")
        kept = {kernel for kernel, _ in self._kept}
        samples = [sample for sample in self._swapper.samples() if sample.definition in kept]
        busiest = max(samples, key=lambda sample: sample.swapped_launches)
        slot = busiest.definition
        self._say(f"a fault is injected: {slot} turns wrong")
        before = {(e.id, e.at) for e in self._journal.events("harm-detected")}
        injected_s = time.time()
        httpx.post(f"{self._url}/demo/fault", json={"slot": slot}, timeout=10).raise_for_status()

        def new(what: str) -> Event | None:
            later = [e for e in self._journal.events(what) if (e.id, e.at) not in before]
            later = [e for e in later if e.at.timestamp() >= injected_s]
            return later[0] if later else None

        timeout_s = self._options.rollback_timeout_s
        harm = self._wait("the daemon", lambda: new("harm-detected"), timeout_s=timeout_s)
        back = self._wait("the rollback", lambda: new("reverted"), timeout_s=timeout_s)
        self._wait("the record", lambda: new("rolled-back"), timeout_s=timeout_s)
        detected_s = harm.at.timestamp() - injected_s
        revert_s = (back.at - harm.at).total_seconds()
        reason = str(harm.detail["reason"])
        who = "the server's own breaker went back, the daemon made it official"
        if reason != WatchReason.TRIPPED:
            who = "the daemon went back"
        self._say(
            f"found after {detected_s:.1f} s ({reason}); {who} {revert_s * 1e3:.0f} ms after that"
        )
        return {
            "kernel": slot,
            "reason": reason,
            "detected_after_s": detected_s,
            "alarm_to_revert_s": revert_s,
            "reverted": self._journal.reverted(slot, active=self._active(slot)),
        }

    # --- helpers ------------------------------------------------------------------------------

    def _active(self, slot: str) -> str | None:
        return next(s.active for s in self._swapper.slots() if s.definition == slot)

    def _enter(self, phase: str) -> None:
        now = time.monotonic() - self._started_s
        if self._phases:
            self._phases[-1]["end_s"] = now
        self._phases.append({"name": phase, "start_s": now, "end_s": now})

    def _measure(self) -> float:
        return self._meter.rate(self._options.measure_s, ramp_s=self._options.ramp_s)

    def _wait(self, what: str, found: Callable[[], T | None], *, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = found()
            if answer is not None:
                return answer
            for child in (self._server, self._client, self._daemon):
                child.check()
            time.sleep(_POLL_S)
        raise DemoFailed(f"waited {timeout_s:g} s for {what}:\n{self._daemon.tail()}")

    def _tell(self, totals: Mapping[str, Any], rollback: Mapping[str, Any]) -> dict[str, Any]:
        self._phases[-1]["end_s"] = time.monotonic() - self._started_s
        drift = self._journal.drift() or {}
        return {
            "requests": {
                "sent": totals["sent"],
                "ok": totals["ok"],
                "failed": totals["failed"],
            },
            "tokens_per_s": self._rates,
            "drift": {
                key: drift.get(key) for key in ("detected", "reasons", "distance", "sentence")
            },
            "experiments": self._journal.experiments(),
            "plot": str(self._options.plot),
            "swaps": [
                {**swap, "kept": (swap["kernel"], swap["digest"]) in self._kept}
                for swap in self._journal.swaps()
            ],
            "rollback": dict(rollback),
            "duration_s": time.monotonic() - self._started_s,
            "hypotheses": self._journal.hypotheses(),
            "proposals": self._journal.decided(),
            "phases": self._phases,
            "drift_windows": self._journal.drift_windows(origin_s=self._started_wall_s),
            "timeline": timeline_of(totals["timeline"], self._phases, origin_s=self._started_s),
        }


def _named(cores: Sequence[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {cores[0]} to {cores[-1]}"


def _server_arguments(options: DemoOptions, cores: Cores) -> list[str]:
    folder = options.folder
    return [
        *("-m", "retuned.demo.server", "--allow-fault", "--port", "0"),
        *("--socket-dir", str(folder / "sockets"), "--trace-dir", str(folder / "traces")),
        *("--cache-dir", str(folder / "cache"), "--cores", ",".join(map(str, cores.server))),
        *("--device", options.device),
        *("--seed", str(options.seed), "--window-steps", "25", "--window-every-s", "2"),
        *(("--swapped-cost", f"{_HARMFUL_COST:g}") if options.plot is Plot.HARMFUL else ()),
    ]
