"""One turn of the loop in the running server: the daemon does it, this file watches from outside.

Where the daemon proves no win, this file puts a variant without one in force through the same
socket, so that swap, engagement, checks and rollback are still shown; the result has this under
``ordered_by``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.gpu.live.daemon_settings import write_settings
from benchmarks.gpu.live.stage import Stage
from benchmarks.gpu.live.traces import kernel_times
from benchmarks.gpu.live.traffic import Background
from benchmarks.gpu.live.variants import order_by_hand, take_back

from retuned.demo.journal import Journal
from retuned.demo.processes import Child
from retuned.demo.traffic import Phase
from retuned.errors import HarnessError
from retuned.store.sqlite import SqliteStore

KERNELS = ("_rms_norm_forward_kernel", "_swiglu_forward_kernel", "_triton_rope", "silu_mul_tiles")
"""Liger's, as traces name them, and what may take their place."""
_POLL_S = 0.2
_SEEN_S = 8.0
"""Traffic before the script lifts what it has launched."""
_THIN_S = 1.0
"""Pause of each sender while the lab measures: lab and server share one GPU here, and a win of a
tenth would drown in the server's launches."""


class Turn:
    """One turn.

    Parameters
    ----------
    stage
        Server and control, started.
    say
        Prints a line.
    part
        Does one part, keeps its result or its error.
    cores
        For daemon and lab.
    quick
        Fewer blocks.
    left_s
        Seconds that are left.
    requests
        Of one block.
    by_script
        Swap without a daemon: no drift, no experiments.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        say: Callable[[str], None],
        part: Callable[..., Any],
        cores: Sequence[int],
        quick: bool,
        left_s: Callable[[], float],
        requests: int,
        by_script: bool = False,
    ) -> None:
        self._stage = stage
        self._by_script = by_script
        self._say = say
        self._part = part
        self._cores = tuple(cores)
        self._quick = quick
        self._left_s = left_s
        self._requests = requests
        self._config = stage.folder / "retuned.yaml"
        self._traffic: Background | None = None
        self._daemon: Child | None = None
        self._ordered_by = "daemon"
        self._journal = Journal(SqliteStore(stage.folder / "state"))

    def run(self, stack: ExitStack) -> None:
        """Do it, part by part."""
        mode = self._stage.mode
        self._traffic = self._begin_traffic()
        if self._by_script:
            time.sleep(_SEEN_S)
        else:
            self._part(f"{mode}: baseline", lambda: self._baseline(stack), least_s=100)
            self._part(f"{mode}: drift", self._drift, least_s=80)
            self._part(f"{mode}: experiments", self._experiments, least_s=60)
            self._part(f"{mode}: told", self._told)
        self._part(f"{mode}: swapped", self._swapped)
        self._part(f"{mode}: engaged", self._stage.engaged)
        self._end_traffic()
        self._part(f"{mode}: same batches, swapped", lambda: self._stage.exact(seed=7))
        self._part(f"{mode}: rates, swapped", self._rates, least_s=20)
        self._part(f"{mode}: kernel times", self._times, least_s=15)
        self._traffic = self._begin_traffic()
        self._part(f"{mode}: rollback", self._rollback)
        self._end_traffic()
        self._part(f"{mode}: same batches, rolled back", lambda: self._stage.exact(seed=7))

    # --- traffic ----------------------------------------------------------------------------------

    def _begin_traffic(self) -> Background:
        stage = self._stage
        return Background(
            stage.urls["server"], model=stage.model, in_flight=stage.in_flight, seed=11
        )

    def _end_traffic(self) -> None:
        self._stage.windows(on=False)
        if self._traffic is not None:
            self._stage.answers += self._traffic.stop()
            self._traffic = None

    # --- parts ------------------------------------------------------------------------------------

    def _baseline(self, stack: ExitStack) -> dict[str, Any]:
        """Start the daemon under chat traffic, and wait until it knows what is normal."""
        write_settings(self._stage.folder, self._config, cores=self._cores)
        for window in self._stage.new_windows(0.0):
            window.unlink()  # of both kinds of traffic: the daemon shall learn chat
        self._stage.windows(on=True)
        words = ["-m", "benchmarks.gpu.live.daemon", str(self._config)]
        started_s = time.monotonic()
        self._daemon = stack.enter_context(
            Child("daemon", words, log_dir=self._stage.folder, cores=self._cores)
        )
        self._wait("the baseline", lambda: self._journal.event("baseline-learned"), limit_s=90)
        return {"seconds": round(time.monotonic() - started_s, 1)}

    def _drift(self) -> dict[str, Any]:
        """Turn the traffic to code; the daemon gets no notice of it."""
        assert self._traffic is not None, "traffic runs"
        self._traffic.phase = Phase.CODE
        started_s = time.monotonic()
        found = self._wait("the drift", self._journal.drift, limit_s=75)
        return {
            "seconds": round(time.monotonic() - started_s, 1),
            "sentence": found["sentence"],
            "distance": found["distance"],
        }

    def _experiments(self) -> dict[str, Any]:
        """Wait for experiments and what comes of them; approve what asks for a person."""
        started_s = time.monotonic()
        limit_s = min(240.0, self._left_s() * 0.6)
        rested_s = started_s + 35.0
        asked: set[str] = set()
        assert self._traffic is not None, "traffic runs"
        while time.monotonic() - started_s < limit_s:
            for proposal in self._journal.gated():
                if proposal["id"] not in asked:
                    asked.add(proposal["id"])
                    self._command("approve", str(proposal["id"]))
            if self._journal.busy() or self._journal.undecided():
                rested_s = time.monotonic() + 6.0
            self._traffic.pause_s = _THIN_S if self._journal.busy() else 0.0
            if time.monotonic() > rested_s or (self._quick and self._journal.swaps()):
                break
            self._check()
            time.sleep(_POLL_S)
        self._traffic.pause_s = 0.0
        self._command("freeze", "--reason", "what is in force is measured now")
        while self._journal.busy() and time.monotonic() - started_s < limit_s + 30.0:
            self._check()
            time.sleep(_POLL_S)
        return {"seconds": round(time.monotonic() - started_s, 1), "approved": sorted(asked)}

    def _told(self) -> dict[str, Any]:
        """Return what the store says of all this."""
        lifted = json.loads(self._command("kernels", "lifted", "--json"))
        return {
            "lifted": [
                {k: each[k] for k in ("name", "kernel", "incumbent", "choices", "grid")}
                | {"shapes": len(each["shapes"])}
                for each in lifted["lifted"]
            ],
            "not_lifted": lifted["refused"],
            "hypotheses": self._journal.hypotheses(),
            "experiments": self._journal.experiments(),
            "proposals": self._journal.decided(),
            "swaps": self._journal.swaps(),
            "drift_windows": len(self._journal.drift_windows(origin_s=0.0)),
        }

    def _swapped(self) -> dict[str, Any]:
        """Return what is in force; put something in force if the daemon proved no win."""
        active = self._active()
        if not active:
            self._ordered_by = "script"
            if self._daemon is not None:
                self._daemon.__exit__(None, None, None)  # one commander at a time
                self._daemon = None
            kept = order_by_hand(self._stage.swapper, self._stage.folder)
            self._say(f"no proven win; variants are ordered by the script; not lifted: {kept}")
            active = self._active()
        if not active:
            raise HarnessError("nothing is in force")
        return {"ordered_by": self._ordered_by, "active": active}

    def _rates(self) -> list[Any]:
        stage = self._stage
        sides: dict[str, Callable[[], str]] = {
            "control": lambda: "control",
            "off": lambda: stage.bypass(on=True),
            "on": lambda: stage.bypass(on=False),
        }
        blocks = 3 if self._quick else 10
        try:
            return [
                stage.rates(sides, phase, blocks=blocks, requests=self._requests) for phase in Phase
            ]
        finally:
            stage.bypass(on=False)

    def _times(self) -> dict[str, Any]:
        """Return GPU time per kernel with the originals, and with the variants."""
        stage, found = self._stage, {}
        try:
            for name, originals in (("before", True), ("after", False)):
                stage.bypass(on=originals)
                windows = stage.fresh_windows(Phase.CHAT, count=2, requests=self._requests)
                found[name] = kernel_times(windows, KERNELS)
        finally:
            stage.bypass(on=False)
        return found

    def _rollback(self) -> dict[str, Any]:
        """Take everything back under traffic; return how long it took and that it holds."""
        active = self._active()
        started_s = time.monotonic()
        if self._ordered_by == "daemon":
            for definition in active:
                self._command("rollback", "--slot", definition)
        else:
            take_back(self._stage.swapper, active)
        told_s = time.monotonic()
        self._wait("the rollback", lambda: not self._active() or None, limit_s=30)
        done_s = time.monotonic()
        before = {s.definition: s.fallback_launches for s in self._stage.swapper.samples()}
        time.sleep(2.0)  # traffic goes on: originals alone may be counted meanwhile
        after = {s.definition: s for s in self._stage.swapper.samples()}
        return {
            "kernels": len(active),
            "commands_s": round(told_s - started_s, 3),
            "commands_to_originals_s": round(done_s - told_s, 3),
            "swapped_launches_afterwards": sum(s.swapped_launches for s in after.values()),
            "originals_launched_in_2_s": {
                name: s.fallback_launches - before.get(name, 0) for name, s in after.items()
            },
            "graph": {s["definition"]: s.get("graph") for s in self._stage.slots()},
        }

    # --- helpers ----------------------------------------------------------------------------------

    def _active(self) -> dict[str, str]:
        slots = self._stage.swapper.slots()
        return {s.definition: s.active for s in slots if s.active is not None}

    def _command(self, *words: str) -> str:
        """Run ``retuned`` as a person does."""
        done = subprocess.run(
            [sys.executable, "-m", "retuned.cli", *words, "--config", str(self._config)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"retuned {' '.join(words)}: {done.stderr[-600:]}")
        return done.stdout

    def _wait(self, what: str, found: Callable[[], Any], *, limit_s: float) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + min(limit_s, max(self._left_s(), 5.0))
        while time.monotonic() < deadline:
            answer = found()
            if answer is not None:
                return answer
            self._check()
            time.sleep(_POLL_S)
        tail = self._daemon.tail(8) if self._daemon is not None else ""
        raise HarnessError(f"waited {limit_s:g} s for {what}: {tail}")

    def _check(self) -> None:
        for child in (self._stage.server, self._stage.control, self._daemon):
            if child is not None:
                child.check()
