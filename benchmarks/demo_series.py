"""The demo, again and again: does every run do all that it promises?

    python benchmarks/demo_series.py [--runs 10]

Each run is ``make demo ARGS="--yes --json ..."`` in this checkout, one after the other on a machine
that does nothing else, with a seed of its own. What a run must show is checked here and written
beside its figures; the exit code is 1 unless every run shows everything. Results are in
benchmarks/results/demo_series.json; nothing is left out, failed runs are in it as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "demo_series.json"
MAX_S = 360.0
METHOD = (
    "each run is `make demo ARGS=--yes` with a seed of its own, one after the other, nothing else "
    "running; server on one core, client, daemon and lab on the other; tokens count prompt and "
    "output; swap_gain compares each 'on' with the 'off' after it, bounds of 95 % each from "
    "Student's t over the pairs' log ratios"
)


def one_run(seed: int, folder: Path) -> dict[str, Any]:
    """Run the demo once and reduce its record to what the series is about."""
    arguments = f"--yes --json --seed {seed} --html {folder / 'report.html'}"
    begin = time.monotonic()
    done = subprocess.run(
        ["make", "--silent", "demo", f"ARGS={arguments}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * MAX_S,
    )
    took_s = time.monotonic() - begin
    if done.returncode != 0:
        said = done.stderr[-2000:]
        return {"seed": seed, "exit": done.returncode, "took_s": took_s, "missing": [said]}
    record = json.loads(done.stdout[done.stdout.index("{") :])
    return {
        "seed": seed,
        "exit": 0,
        "took_s": round(took_s, 1),
        "requests": record["requests"],
        "tokens_per_s": {k: round(v, 1) for k, v in record["tokens_per_s"].items()},
        "toggle": [(t["state"], round(t["tokens_per_s"], 1)) for t in record["toggle"]],
        "swap_gain": record["swap_gain"],
        "swaps": record["swaps"],
        "hypotheses": [(h["definition"], h["attempt"]) for h in record["hypotheses"]],
        "candidates": sum(e["candidates"] for e in record["experiments"]),
        "rollback": record["rollback"],
        "drift": record["drift"]["sentence"],
        "missing": missing(record, took_s=took_s),
    }


def missing(record: dict[str, Any], *, took_s: float) -> list[str]:
    """Name what a run promised and did not show; empty is good."""
    rates, requests = record["tokens_per_s"], record["requests"]
    lower = max((swap["speedup"]["lower"] for swap in record["swaps"]), default=0.0)
    shown = {
        "ends within six minutes": took_s < MAX_S,
        "every request is served": requests["sent"] == requests["ok"] > 0 == requests["failed"],
        "the drift is found": bool(record["drift"]["detected"]),
        "a winner's lower bound is above 1": lower > 1.0,
        "tokens/s after the swap above those after the drift": rates["after_swap"]
        > rates["after_drift"],
        "tokens/s with the swap on above those with it off": record["swap_gain"] is not None
        and record["swap_gain"]["speedup"]["point"] > 1.0,
        "the fault is rolled back": bool(record["rollback"]["reverted"]),
    }
    return [what for what, holds in shown.items() if not holds]


def machine() -> dict[str, Any]:
    """Describe the machine as far as figures depend on it."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
    }


def main() -> int:
    """Run the series."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    runs: list[dict[str, Any]] = []
    for seed in range(options.runs):
        runs.append(one_run(seed, folder))
        print(json.dumps({k: runs[-1].get(k) for k in ("seed", "took_s", "tokens_per_s")}))
        print(f"  missing: {runs[-1]['missing'] or 'nothing'}", flush=True)
        good = sum(not run["missing"] for run in runs)
        body = {"machine": machine(), "method": METHOD, "good": good, "of": len(runs), "runs": runs}
        RESULT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 0 if all(not run["missing"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
