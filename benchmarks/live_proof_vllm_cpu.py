"""Live proofs in a real vLLM on the CPU: of tables without an effect, and with known effects.

    python -m benchmarks.live_proof_vllm_cpu [--same 20] [--known 3] [--minutes 45]

The server of `make vllm` serves a tiny model, and a kernel runs in each of its layers
(`tests/servers/vllm_cpu/timed_tunable.py`). The runner, the pairs and the verdicts are the
product's; only the orders are this program's. `same` is a table with the server's own
configuration. The known effects are tables with extra operations. What they cost is measured
beside the proof by the tokens that the server counts, in blocks of 5 s with the table and without,
in random order, while four requests are always under way. One pilot serves all proofs. Raw pairs
are in benchmarks/results/live_proof_vllm_cpu.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from benchmarks.gpu.vllm_live.load import interval
from benchmarks.gpu.vllm_live.proofs import Arms, Kept, measured, series, table_of
from benchmarks.gpu.vllm_live.toggles import Toggles
from tests.servers.vllm_cpu import server
from tests.servers.vllm_cpu.server import Lane

from retuned.stages.watch import proof

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "live_proof_vllm_cpu.json"
EXTRAS = (8, 32, 128)
"""Extra operations of the tables with an effect."""
LONGEST_S = 150.0
"""Of one proof, seconds; the pilot has its own time."""
RATE_PAIRS, RATE_S = 8, 5.0
UNDER_WAY = 4
WORDS = "badu lemi siva tolo pani weda nora vipi gele"


class Traffic:
    """Requests of several lengths, four under way."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._stop = lane, threading.Event()
        self.done: list[tuple[float, int]] = []
        self._threads = [
            threading.Thread(target=self._send, args=(each,)) for each in range(UNDER_WAY)
        ]

    def __enter__(self) -> Traffic:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(180.0)

    def _send(self, number: int) -> None:
        chance = random.Random(number)
        words = WORDS.split()
        while not self._stop.is_set():
            prompt = " ".join(chance.choices(words, k=chance.randint(4, 60)))
            tokens = chance.randint(16, 96)
            try:
                self._lane.answer(prompt, tokens=tokens)
                self.done.append((time.monotonic(), tokens))
            except httpx.HTTPError as error:
                self._lane.failed.append(repr(error))


def rates(
    traffic: Traffic, arms: Arms, stepped: StepCount, *, pairs: int
) -> dict[str, float] | None:
    """Return steps per second off over on, from the server's own count of steps."""
    chance, ratios = random.Random(7), []
    for _ in range(pairs):
        order = [False, True]
        chance.shuffle(order)
        found = {}
        for on in order:
            arms.bypass(arms.definition, on=not on)
            time.sleep(0.5)
            begin_s, before = time.monotonic(), stepped.tokens()
            time.sleep(RATE_S)
            found[on] = (stepped.tokens() - before) / (time.monotonic() - begin_s)
        ratios.append(math.log(found[False] / found[True]))
    return interval(ratios)


class StepCount:
    """Tokens that the server has generated, from its own metrics."""

    def __init__(self, url: str) -> None:
        self._url = url

    def tokens(self) -> float:
        """Return the count."""
        text = httpx.get(self._url + "/metrics", timeout=30.0).text
        lines = [line for line in text.splitlines() if line.startswith(_TOKENS)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


_TOKENS = "vllm:generation_tokens_total"


def table(toggles: Toggles, extra: int) -> tuple[str, str]:
    """Return the tunable's id, and a table with so many extra operations for all its classes."""
    reports = toggles.report()["tunables"]
    report = next(each for each in reports if each["kernel"] == "_copied")
    own = report["asked"][0]["config"]
    config = own | {"kwargs": own["kwargs"] | {"EXTRA": extra}}
    return report["id"], table_of(report, config)


def fresh(longest_s: float) -> proof.ProofSettings:
    """Return settings: short blocks decide."""
    return proof.ProofSettings(max_duration_s=longest_s, long_blocks=0)


def run(options: argparse.Namespace, lane: Lane) -> dict[str, Any]:
    """Prove all tables; results are written after each."""
    begin_s = time.monotonic()
    results = series(__doc__)
    toggles = Toggles(lane.sockets)
    with Traffic(lane) as traffic:
        while len(traffic.done) < 4 * UNDER_WAY:
            time.sleep(0.5)
        names = [("same", 0)] * options.same
        known = [
            (f"{extra} operations more", extra) for extra in EXTRAS for _ in range(options.known)
        ]
        names += known
        random.Random(11).shuffle(names)
        names.insert(0, ("same", 0))  # its pilot serves all
        earlier: proof.ProofState | None = None
        costs: dict[int, dict[str, float] | None] = {}
        for name, extra in names:
            if time.monotonic() - begin_s > options.minutes * 60.0:
                break
            definition, text = table(toggles, extra)
            toggles.on(text)
            time.sleep(1.0)
            arms = Arms(toggles, definition)
            kept = Kept(fresh(LONGEST_S if earlier else 2.0 * LONGEST_S), earlier)
            found = asyncio.run(
                measured(arms, kept, lane.sockets, name, deadline_s=time.monotonic() + 600.0)
            )
            earlier = earlier or kept.state
            if extra and extra not in costs:
                costs[extra] = rates(traffic, arms, StepCount(lane.url), pairs=RATE_PAIRS)
            toggles.off(definition)
            found["load_average"] = os.getloadavg()[0]
            results["proofs"].append(found)
            results["client"] = {str(key): value for key, value in costs.items()}
            results["requests"] = {"done": len(traffic.done), "failed": lane.failed}
            results["load_average"].append(os.getloadavg()[0])
            results["seconds"] = round(time.monotonic() - begin_s, 1)
            options.out.write_text(json.dumps(results, indent=1, default=str) + "\n")
            shown = {
                key: found.get(key)
                for key in ("arm", "verdict", "effect", "low", "high", "seconds")
            }
            print(json.dumps(shown, default=str), flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--same", type=int, default=20, help="proofs of a table without an effect")
    parser.add_argument("--known", type=int, default=3, help="proofs of each known effect")
    parser.add_argument("--minutes", type=float, default=45.0, help="no proof begins after them")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        lane = Lane(Path(folder), plugin=Path(server.__file__).with_name("timed_tunable.py"))
        try:
            lane.start()
            run(options, lane)
        finally:
            lane.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
