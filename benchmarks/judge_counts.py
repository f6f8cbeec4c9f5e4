"""How often the judge is wrong: decisions counted over simulated clocks, and a sample of real ones.

``python -m benchmarks.judge_counts`` takes about ten minutes on one core and writes
benchmarks/results/judge_counts.json. ``--record`` first times identical kernels against each other
on this machine and renews the recording that the tests replay. Looks, statistics, settling and
verdict are the product's own; only the clock is drawn, from a model or from the recording.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.lab.judge_simulation import (
    RECORDED,
    Floats,
    Modelled,
    Noise,
    Shape,
    recorded,
    simulate,
    tournament,
)
from tests.lab.real_clones import KERNELS, experiment

from retuned import catalog
from retuned.contract import Workload
from retuned.lab.harness.schedule import CANDIDATE
from retuned.lab.resources import LabResources
from retuned.lab.statistics import ShapeSamples, combine, confidence_sequence
from retuned.stages.verdict import Status

RESULT = Path(__file__).resolve().parent / "results" / "judge_counts.json"
PAIRS = 600
UNITS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=2000, help="simulated experiments per row")
    parser.add_argument("--real", type=int, default=30, help="experiments with real clocks")
    parser.add_argument("--record", action="store_true", help="renew the recording first")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.record:
        RECORDED.parent.mkdir(parents=True, exist_ok=True)
        RECORDED.write_text(json.dumps(record(), indent=None, separators=(",", ":")) + "\n")
    begin_s = time.monotonic()
    noises: dict[str, Noise] = {"modelled": Modelled(), "recorded": recorded()}
    body: dict[str, Any] = {
        "machine": machine(),
        "method": (
            "simulated experiments through the lab's statistics and the judge, looks included: "
            f"{UNITS} ABBA units a block, 6 blocks a process and shape, 2 to 8 processes, a look "
            "after each from the second on; intervals are Wilson's at 95 %. modelled: AR(1) drift "
            "1.5 % (0.98 from launch to launch), jitter 0.5 %, 1 % of launches interrupted; "
            "recorded: pairs of identical kernels timed by the lab, replayed from random places. "
            "real: a copy of the incumbent with another comment, through the whole lab"
        ),
        "rows": [row for name, noise in noises.items() for row in rows(name, noise, given.runs)],
        "looks": looks(noises, runs=given.runs),
        "coverage": coverage(runs=given.runs),
        "real": real(given.real),
    }
    body["seconds"] = round(time.monotonic() - begin_s, 1)
    given.out.write_text(json.dumps(body, indent=1) + "\n")
    print(f"written to {given.out.name}")


def rows(name: str, noise: Noise, runs: int) -> list[dict[str, Any]]:
    """Count promotions of what ought to be promoted, and of what must not be."""
    cases: tuple[tuple[str, Sequence[Shape]], ...] = (
        ("identical clone, two shapes", (Shape(speedup=1.0), Shape(speedup=1.0, base_us=200.0))),
        ("2 % slower, two shapes", (Shape(speedup=0.98), Shape(speedup=0.98, base_us=200.0))),
        ("exactly the required gain", (Shape(speedup=1.0 / 0.99),)),
        ("3 % faster", (Shape(speedup=1.03),)),
        ("3 % faster, two shapes", (Shape(speedup=1.03), Shape(speedup=1.03, base_us=200.0))),
        ("loses at one shape, wins at one", (Shape(speedup=0.9), Shape(speedup=1.4))),
        ("20x where physics allows 12x", (Shape(speedup=20.0, floor_us=9.2),)),
    )
    found = [_row(name, what, shapes, noise=noise, runs=runs) for what, shapes in cases]
    random = np.random.default_rng(77)
    clones = [[Shape(speedup=1.0)] for _ in range(3)]
    wrong = sum(
        any(end.verdict.status is Status.PROMOTE for end in tournament(random, clones, noise=noise))
        for _ in range(runs)
    )
    print(f"{name}: any of three clones promoted: {wrong} of {runs}", flush=True)
    return [
        *found,
        {"noise": name, "what": "any of three identical finalists", **share(wrong, runs)},
    ]


def _row(
    name: str, what: str, shapes: Sequence[Shape], *, noise: Noise, runs: int
) -> dict[str, Any]:
    random = np.random.default_rng(7)
    ends = [simulate(random, shapes, noise=noise, units=UNITS) for _ in range(runs)]
    promoted = sum(end.verdict.status is Status.PROMOTE for end in ends)
    print(f"{name}: {what}: {promoted} of {runs} promoted", flush=True)
    return {
        "noise": name,
        "what": what,
        **share(promoted, runs),
        "reasons": dict(Counter(str(end.verdict.reason) for end in ends)),
        "looks": dict(sorted(Counter(end.looks for end in ends).items())),
    }


def looks(noises: dict[str, Noise], *, runs: int) -> list[dict[str, Any]]:
    """Count false wins of who looks after every block, from 10 to 129, at no effect at all."""
    found = []
    for name, noise in noises.items():
        random, wins, peeking = np.random.default_rng(8), 0, 0
        for _ in range(runs):
            pairs = noise.pairs(random, 129 * 6)
            ratios = np.median(np.log(pairs[:, 0] / pairs[:, 1]).reshape(129, 6), axis=1)
            wins += _ever(ratios, lambda values: confidence_sequence(values, confidence=0.99)[0])
            peeking += _ever(ratios, _t_bound)
        print(f"{name}: 120 looks: {wins} false wins, by a t bound {peeking}", flush=True)
        found.append(
            {
                "noise": name,
                "looks": 120,
                "alpha": 0.01,
                "sequence": share(wins, runs),
                "t_bound": share(peeking, runs),
            }
        )
    return found


def _ever(ratios: Floats, bound: Callable[[list[float]], float]) -> bool:
    return any(bound(ratios[:count].tolist()) > 0.0 for count in range(10, 130))


def _t_bound(values: list[float]) -> float:
    """Lower bound at 99 % for a single look; from 30 blocks on t is close to normal."""
    quantile = 2.821 if len(values) < 15 else 2.539 if len(values) < 30 else 2.390
    array = np.array(values)
    return float(array.mean() - quantile * array.std(ddof=1) / math.sqrt(len(values)))


def coverage(*, runs: int) -> list[dict[str, Any]]:
    """Count how often the weighted 95 % bound covers the truth, by how much shapes differ."""
    found, noise = [], Modelled()
    for speedups in ((1.0, 1.0), (1.1, 1.12), (1.1, 1.3), (1.0, 1.5), (0.8, 2.0)):
        random, covered = np.random.default_rng(9), 0
        truth = 2.0 / sum(1.0 / each for each in speedups)
        for _ in range(runs):
            weighted = combine([_alone(random, noise, each) for each in speedups])
            assert weighted is not None
            covered += weighted.interval(0.95).lower <= truth
        print(f"weighted bound, {speedups}: covers {covered} of {runs}", flush=True)
        found.append({"speedups": speedups, **share(covered, runs)})
    return found


def _alone(random: np.random.Generator, noise: Noise, speedup: float) -> ShapeSamples:
    pairs = 100.0 * noise.pairs(random, 12 * 4)
    return ShapeSamples(
        weight=1.0,
        incumbent_us=pairs[:, 0],
        candidate_us=pairs[:, 1] / speedup,
        block=np.repeat(np.arange(12), 4),
    )


def real(experiments: int) -> dict[str, Any]:
    """Let copies of incumbents go through the whole lab, on real clocks."""
    verdicts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(experiments):
            verdict = experiment(Path(folder), number).verdict
            name, _ = KERNELS[number % len(KERNELS)]
            verdicts.append({"kernel": name, "status": verdict.status, "reason": verdict.reason})
    promoted = sum(row["status"] is Status.PROMOTE for row in verdicts)
    print(f"real clones: {promoted} of {experiments} promoted", flush=True)
    return {**share(promoted, experiments), "raw": verdicts}


def record() -> dict[str, Any]:
    """Time identical kernels against each other as the lab does."""
    shapes = []
    with tempfile.TemporaryDirectory() as folder:
        for name, axes in KERNELS:
            entry = catalog.get(name)
            workload = Workload(definition=name, axes=axes)
            bay = LabResources(entry, [workload], incumbent=entry.incumbent, folder=Path(folder))
            try:
                with bay.duel([bay.incumbent, bay.clone()]) as duel:
                    duel.prepare(axes, bay.sets(0, bay.seeds), seed=1)
                    blocks = [duel.block([CANDIDATE] * UNITS) for _ in range(PAIRS // (2 * UNITS))]
            finally:
                bay.close()
            pairs = [[round(a, 3), round(b, 3)] for block in blocks for _, a, b in block]
            shapes.append({"kernel": name, "axes": axes, "pairs_us": pairs})
            print(f"recorded {len(pairs)} pairs of {name}", flush=True)
    return {
        "machine": machine(),
        "method": (
            "incumbent and its byte-identical clone, each loaded once, ABBA units in one child of "
            f"the lab, {UNITS} units a block, microseconds a launch, in the order timed"
        ),
        "shapes": shapes,
    }


def share(count: int, total: int) -> dict[str, Any]:
    """Return a count with Wilson's interval of its share."""
    if total == 0:
        return {"count": 0, "of": 0, "interval": [0.0, 1.0]}
    z, p = 1.96, count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total**2)) / (1 + z * z / total)
    interval = [round(max(centre - reach, 0.0), 5), round(min(centre + reach, 1.0), 5)]
    return {"count": count, "of": total, "interval": interval}


def machine() -> dict[str, Any]:
    """Describe the processor, without naming the host."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return {"cpu": line.partition(":")[2].strip(), "cores": os.cpu_count()}
    return {"cpu": platform.machine(), "cores": os.cpu_count()}


if __name__ == "__main__":
    main()
