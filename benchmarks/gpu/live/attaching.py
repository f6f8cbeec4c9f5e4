"""What a server pays for Retuned being in it, told apart from what a profiler leaves behind.

    OUT=/tmp/out python -m benchmarks.gpu.live.attaching [--modes eager,graphs] [--blocks 8]

Four servers of the same model on one GPU, asked the same requests in turn while the others are
idle: neither Retuned nor a profiler; a profiler that has run once; Retuned attached, counting every
launch, with nothing swapped; both. Tokens a second of wall clock, and the processor's time of the
server's process a token, which other programs on the host disturb less.
Writes ``$OUT/gpu_attaching.json`` after each mode.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.gpu.clocking import ratio_interval
from benchmarks.gpu.live.__main__ import machine
from benchmarks.gpu.live.traffic import play, requests_of

from retuned.demo.processes import Child, Cores
from retuned.demo.traffic import Phase

SIDES: Mapping[str, tuple[bool, bool]] = {
    "alone": (False, False),
    "profiled": (False, True),
    "attached": (True, False),
    "attached and profiled": (True, True),
}
"""Whether Retuned is attached, and whether a profiler has run."""
_START_S = 240.0
_ALL_THREADS = 2
"""What Linux adds to a process's clock id for what its scheduler counted."""


class Server:
    """One of the four.

    Parameters
    ----------
    child
        Its process.
    port
        Where it listens.
    """

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.url = f"http://127.0.0.1:{port}"

    def cpu_us(self) -> float:
        """Return the processor's time of the process so far, all threads."""
        return time.clock_gettime_ns((~self._child.pid << 3) | _ALL_THREADS) / 1e3


def start(
    stack: ExitStack, folder: Path, options: argparse.Namespace, *, mode: str, cores: Sequence[int]
) -> dict[str, Server]:
    """Start all four, and wait until each takes requests."""
    folder.mkdir(parents=True, exist_ok=True)
    children = {}
    for name, (attached, profiled) in SIDES.items():
        own = folder / name.replace(" ", "-")
        words = [
            *("-m", "benchmarks.gpu.live.server", "--mode", mode),
            *("--device", options.device, "--model", options.model),
            *("--max-running", str(options.in_flight)),
        ]
        env = {"RETUNED_RUNTIME": "off"}
        if attached:
            (own / "sockets").mkdir(parents=True, mode=0o700)
            words += ["--socket-dir", str(own / "sockets")]
            env = {"RETUNED_RUNTIME": "on", "RETUNED_TRITON": "on"}
        if profiled:  # its warm-up runs the profiler once; an hour passes before the next
            words += ["--trace-dir", str(own / "traces"), "--window-every-s", "3600"]
        child = Child(name.replace(" ", "-"), words, log_dir=folder, cores=cores, env=env)
        children[name] = stack.enter_context(child)
    return {
        name: Server(child, child.answer(timeout_s=_START_S)["port"])
        for name, child in children.items()
    }


def compare(
    servers: Mapping[str, Server], phase: Phase, options: argparse.Namespace
) -> dict[str, Any]:
    """Ask all of them the same, block by block, in an order that turns round."""
    rates: dict[str, list[float]] = {name: [] for name in servers}
    costs: dict[str, list[float]] = {name: [] for name in servers}
    failed = 0
    for block in range(-1, options.blocks):  # the first block only warms up
        names = list(servers)
        names = names[block % 4 :] + names[: block % 4]
        requests = requests_of(phase, options.requests, model=options.model, seed=2000 + block)
        for name in names:
            before_us = servers[name].cpu_us()
            played = play(servers[name].url, requests, in_flight=options.in_flight)
            if block < 0:
                continue
            failed += played.failed
            rates[name].append(played.tokens_per_s)
            tokens = played.tokens_per_s * played.seconds
            costs[name].append((servers[name].cpu_us() - before_us) / tokens)
    return {
        "phase": phase,
        "failed": failed,
        "tokens_per_s": {name: _middle(values) for name, values in rates.items()},
        "rate_ratio": _ratios(rates),
        "cpu_us_per_token": {name: _middle(values) for name, values in costs.items()},
        "cpu_ratio": _ratios(costs),
        "raw": {"tokens_per_s": rates, "cpu_us_per_token": costs},
    }


def _middle(values: Sequence[float]) -> float:
    return round(sorted(values)[len(values) // 2], 2)


def _ratios(found: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    pairs = [(name, "alone") for name in SIDES if name != "alone"]
    pairs.append(("attached and profiled", "profiled"))
    return {
        f"{one} / {other}": dict(
            zip(("low", "median", "high"), ratio_interval(found[one], found[other]), strict=True)
        )
        for one, other in pairs
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", default="eager,graphs")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32, help="of one block")
    options = parser.parse_args(arguments)
    options.model = "tiny" if options.device == "cpu" else "gpu"
    return options


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Measure and write."""
    options = parse(arguments)
    out = Path(environment.get("OUT", "gpu-results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    cores = Cores.choose(wide=options.device == "cuda").server
    body: dict[str, Any] = {
        "method": " ".join((__doc__ or "").partition("\n\n")[2].split("\n\n")[1].split()),
        "machine": machine(),
        "blocks": options.blocks,
        "requests_per_block": options.requests,
        "modes": {},
    }
    for mode in options.modes.split(","):
        with tempfile.TemporaryDirectory(prefix="rt-") as folder, ExitStack() as stack:
            servers = start(stack, Path(folder), options, mode=mode, cores=cores)
            body["modes"][mode] = [compare(servers, phase, options) for phase in Phase]
        (out / "gpu_attaching.json").write_text(json.dumps(body, indent=1) + "\n")
        for found in body["modes"][mode]:
            shown = {k: v for k, v in found.items() if k != "raw"}
            sys.stdout.write(f"{mode}: {json.dumps(shown)}\n")


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
