"""Live proofs without an effect in the demo's server, on two cores.

    python -m benchmarks.live_proof_demo [--proofs 20] [--each-s 50] [--minutes 24]

Server and client are those of `retuned demo`, with the traffic of a code assistant; neither a
daemon nor a lab runs. The arm is operation ``overhead-arm``: Retuned's wrappers leave the server's
calls and return. This server has none that could leave, so that only the switch itself and the
label of the steps differ. The runner, the pairs and the verdicts are the product's; one pilot
serves all proofs, and a proof ends without a verdict when its time is over. Raw pairs are in
benchmarks/results/live_proof_demo.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu.vllm_live.proofs import OVERHEAD, Arms, Kept, measured, series
from benchmarks.gpu.vllm_live.toggles import Toggles

from retuned.demo.processes import Child, Cores
from retuned.stages.watch import proof

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_demo.json"
_IN_FLIGHT = 4
PILOT_S = 90.0
DRAIN_S = 5.0
"""Requests of the chat that are under way end meanwhile."""


def run(options: argparse.Namespace, folder: Path) -> None:
    """Serve, and prove again and again; results are written after each proof."""
    with code_traffic(folder, cache=folder / "cache") as (client, sockets):
        time.sleep(DRAIN_S)
        results = _proofs(options, sockets)
        client.say("stop")
        totals = client.answer(timeout_s=90)
    results["requests"] = {key: totals[key] for key in ("sent", "ok", "failed")}
    options.out.write_text(json.dumps(results, indent=1) + "\n")


@contextmanager
def code_traffic(
    folder: Path, *, cache: Path, program: Sequence[str] = ("-m", "retuned.demo.server")
) -> Iterator[tuple[Child, Path]]:
    """Serve traffic of a code assistant; yield the client and the folder of the server's sockets.

    Parameters
    ----------
    folder
        For logs and sockets.
    cache
        For compiled kernels.
    program
        The server, without its options.
    """
    cores, sockets = Cores.choose(), folder / "sockets"
    sockets.mkdir(parents=True, mode=0o700)
    serves = [
        *(*program, "--port", "0", "--socket-dir", str(sockets)),
        *("--cache-dir", str(cache), "--cores", ",".join(map(str, cores.server))),
    ]
    with Child("server", serves, log_dir=folder, cores=cores.server) as server:
        url = f"http://127.0.0.1:{server.answer(timeout_s=180)['port']}"
        asks = ["-m", "retuned.demo.client", "--url", url, "--in-flight", str(_IN_FLIGHT)]
        with Child("client", asks, log_dir=folder, cores=cores.lab) as client:
            client.answer(timeout_s=60)
            client.say("phase code")
            client.answer(timeout_s=60)
            yield client, sockets


def _proofs(options: argparse.Namespace, sockets: Path) -> dict[str, Any]:
    begin_s = time.monotonic()
    results = series(__doc__)
    toggles, earlier = Toggles(sockets), None
    while len(results["proofs"]) < options.proofs:
        if time.monotonic() - begin_s > options.minutes * 60.0:
            break
        kept = Kept(proof.ProofSettings(max_duration_s=600.0, long_blocks=0), earlier)
        deadline_s = time.monotonic() + options.each_s + (0.0 if earlier else PILOT_S)
        arms = Arms(toggles, OVERHEAD)
        found = asyncio.run(measured(arms, kept, sockets, "same", deadline_s=deadline_s))
        earlier = earlier or kept.state
        results["proofs"].append(found)
        results["load_average"].append(os.getloadavg()[0])
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        shown = {key: found.get(key) for key in ("verdict", "effect", "low", "high", "seconds")}
        print(json.dumps({"pairs": len(found["d"])} | shown), flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--proofs", type=int, default=20)
    parser.add_argument("--each-s", type=float, default=50.0, help="most seconds of a proof")
    parser.add_argument("--minutes", type=float, default=24.0, help="no proof begins after them")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
