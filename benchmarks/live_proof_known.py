"""Live proofs of a known effect in the demo's server, on two cores.

    python -m benchmarks.live_proof_known [--delays-us 50 200 800] [--each 2] [--each-s 90]

Server and client are those of `retuned demo`, with the traffic of a code assistant; neither a
daemon nor a lab runs. While the arm is on, each step waits for a delay on the host; the arm is
switched by operation ``overhead-arm``. The true effect of a proof is the logarithm of one plus the
delay over the mean step without it, over the blocks of that proof. The runner, the pairs and the
verdicts are the product's; one pilot serves all proofs. Raw pairs are in
benchmarks/results/live_proof_known.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.vllm_live.proofs import OVERHEAD, Arms, Kept, measured, series
from benchmarks.gpu.vllm_live.toggles import Toggles
from benchmarks.live_proof_demo import DRAIN_S, PILOT_S, code_traffic

from retuned.stages.watch import proof

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_known.json"
_DELAY_FILE = "RETUNED_BENCHMARK_DELAY"


class Delay:
    """A part of the server that can leave: a delay in each step, read from a file on its return."""

    def __init__(self, file: Path) -> None:
        self._file, self._us = file, 0.0

    def suspend(self) -> None:
        """Delay no step."""
        self._us = 0.0

    def resume(self) -> None:
        """Delay each step by the number in the file, microseconds."""
        self._us = float(self._file.read_text())

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward pass with the delay after it."""

        def delayed(*args: object) -> object:
            answer = forward(*args)
            end_s = time.perf_counter() + 1e-6 * self._us
            while time.perf_counter() < end_s:
                pass
            return answer

        return delayed


def serve(arguments: Sequence[str]) -> None:
    """Run the demo's server with a delay that operation ``overhead-arm`` switches."""
    from retuned.demo import server
    from retuned.demo.model import DecoderModel
    from retuned.runtime.core.host import RuntimeHost

    delay = Delay(Path(os.environ[_DELAY_FILE]))
    DecoderModel.forward = delay.around(DecoderModel.forward)  # type: ignore[method-assign]
    RuntimeHost._wrappers = lambda _: {"delay": delay}  # type: ignore[method-assign, assignment]
    server.main(arguments)


def truth_of(state: proof.ProofState, delay_us: float) -> float:
    """Return the effect that a delay has on the steps of a proof, log ratio."""
    off = [pair.off for pair in state.pairs if not pair.sham and pair.void is None]
    mean_s = math.fsum(each.seconds for each in off) / sum(each.steps for each in off)
    return math.log1p(1e-6 * delay_us / mean_s)


def run(options: argparse.Namespace, folder: Path) -> None:
    """Serve, and prove each delay in turn; results are written after each proof."""
    file = folder / "delay"
    file.write_text("0")
    os.environ[_DELAY_FILE] = str(file)
    program = ("-m", "benchmarks.live_proof_known", "--serve")
    results = series(__doc__)
    with code_traffic(folder, cache=folder / "cache", program=program) as (client, sockets):
        time.sleep(DRAIN_S)
        toggles, earlier = Toggles(sockets), None
        for delay_us in options.delays_us * options.each:
            file.write_text(str(delay_us))
            kept = Kept(proof.ProofSettings(max_duration_s=600.0, long_blocks=0), earlier)
            deadline_s = time.monotonic() + options.each_s + (0.0 if earlier else PILOT_S)
            arms = Arms(toggles, OVERHEAD)
            found = asyncio.run(measured(arms, kept, sockets, "delay", deadline_s=deadline_s))
            earlier = earlier or kept.state
            assert kept.state is not None, "the proof has begun"
            known = {"delay_us": delay_us, "truth": truth_of(kept.state, delay_us)}
            results["proofs"].append(known | found)
            results["load_average"].append(os.getloadavg()[0])
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(json.dumps(_shown(results["proofs"][-1])), flush=True)
        client.say("stop")
        totals = client.answer(timeout_s=90)
    results["requests"] = {key: totals[key] for key in ("sent", "ok", "failed")}
    options.out.write_text(json.dumps(results, indent=1) + "\n")


def _shown(found: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("delay_us", "truth", "verdict", "effect", "low", "high", "seconds")
    return {"pairs": len(found["d"])} | {key: found.get(key) for key in keys}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series, or the server of it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--serve"]:
        serve(given[1:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--delays-us", type=float, nargs="+", default=[50.0, 200.0, 800.0])
    parser.add_argument("--each", type=int, default=2, help="proofs of each delay")
    parser.add_argument("--each-s", type=float, default=90.0, help="most seconds of a proof")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
