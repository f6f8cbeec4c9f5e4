"""Boot spread, and canary against control replicas, with the demo's server on two cores.

    python -m benchmarks.live_proof_boots_demo [--minutes 24]

Each boot is a new process of the server of `retuned demo` with the traffic of a code assistant;
neither a daemon nor a lab runs. The change is fixed at start: the server sleeps for 20 ms in each
step, which plays a file that makes it slower. The two boots of a pair run one after the other,
because two servers on these cores would disturb each other; the coin decides which one has the
change. After the A/A pairs the change is proven, and then a change that is none. The plans,
windows, bets and verdicts are the product's. Raw pairs are in
benchmarks/results/live_proof_boots_demo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.vllm_live.proofs import series
from benchmarks.live_proof_demo import code_traffic

from retuned.contract import digest_of
from retuned.node.boots import record_boot
from retuned.report.live_proof import boots_sentence
from retuned.runtime_client.live_steps import StepLook
from retuned.stages.watch.proof import (
    Arm,
    BootPlan,
    BootSettings,
    BootsMeasured,
    BootWindow,
    Interrupted,
    ReplicaState,
    assign,
    begin_replicas,
    step_replicas,
)

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_boots_demo.json"
SETTINGS = BootSettings(
    leave_out_s=4.0, window_s=10.0, least_steps=100, sham_pairs=5, most_pairs=10
)
_SERVER = """
import sys, time
from retuned.demo import engine, server
compute, slow_s = engine.Engine._compute, float(sys.argv[1])
if slow_s:
    engine.Engine._compute = lambda *args: (time.sleep(slow_s), compute(*args))[1]
server.main(sys.argv[2:])
"""
_ENVIRONMENT = digest_of("this machine")


class Boots:
    """Starts servers one after the other; each is one boot."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def pair(self, plan: BootPlan, slow_s: float) -> tuple[BootWindow, BootWindow]:
        """Run both boots of a pair; each step of the canary sleeps for so long, seconds."""
        first, second = (
            self._boot(name, arm, slow_s if arm is Arm.ON else 0.0)
            for name, arm in zip(plan.replicas, plan.runs, strict=True)
        )
        return first, second

    def _boot(self, name: str, arm: Arm, slow_s: float) -> BootWindow:
        self._count += 1
        folder, program = self._folder / f"boot-{self._count}", ("-c", _SERVER, str(slow_s))
        with code_traffic(folder, cache=self._folder / "cache", program=program) as (client, path):
            found = record_boot(
                StepLook(path),
                replica=name,
                boot=folder.name,
                environment=_ENVIRONMENT,
                arm=arm,
                began_s=time.time(),
                settings=SETTINGS,
                sleep=time.sleep,
            )
            client.say("stop")
            client.answer(timeout_s=90)
        return found


def proven(state: ReplicaState, boots: Boots, slow_s: float, *, until_s: float) -> ReplicaState:
    """Run pairs until there is a verdict, or the A/A pairs are complete where nothing changes."""
    sham = state.fit is None
    while not state.done and (state.fit is None) is sham:
        if time.monotonic() > until_s:
            return step_replicas(state, Interrupted(at_s=time.time()))
        state = assign(state, ("replica-0", "replica-1"), coin=secrets.SystemRandom())
        plan = state.open[-1]
        first, second = boots.pair(plan, slow_s)
        state = step_replicas(state, BootsMeasured(plan.number, first, second, at_s=time.time()))
        shown = [round(window.sums.seconds / window.sums.steps, 5) for window in (first, second)]
        print(plan.number, plan.runs, [first.sums.steps, second.sums.steps], shown, flush=True)
    return state


def told(state: ReplicaState, slow_s: float) -> dict[str, Any]:
    """Return the report and the pairs as JSON-able data."""
    body: dict[str, Any] = {
        "slow_s": slow_s,
        "report": None if state.report is None else state.report.model_dump(mode="json"),
        "pairs": [pair.model_dump(mode="json") for pair in state.pairs if not pair.plan.sham],
    }
    if state.report is not None:
        print(boots_sentence(state.report), flush=True)
    return body


def run(options: argparse.Namespace, folder: Path) -> None:
    """Run the A/A pairs, then both proofs."""
    began_s, boots = time.monotonic(), Boots(folder)
    ends_s = began_s + 60.0 * options.minutes
    results = series(__doc__) | {"settings": SETTINGS.model_dump(mode="json"), "proofs": []}
    state = begin_replicas(SETTINGS, environment=_ENVIRONMENT, at_s=time.time())
    state = proven(state, boots, 0.0, until_s=ends_s)
    results["sham"] = [pair.model_dump(mode="json") for pair in state.pairs]
    spread = state.spread
    results["spread"] = None if spread is None else spread.model_dump(mode="json")
    print(results["spread"], flush=True)
    for slow_s in (0.020, 0.0):
        if state.done:
            break
        end = proven(state, boots, slow_s, until_s=ends_s)
        results["proofs"].append(told(end, slow_s))
        results["load_average"].append(os.getloadavg()[0])
        results["minutes"] = round((time.monotonic() - began_s) / 60.0, 1)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=24.0, help="no pair begins after them")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
