"""The demo, again and again: does every run do all that it promises?

    python benchmarks/demo_series.py [--runs 10] [--harmful 2]

Each run is ``retuned demo --yes --json`` of this checkout, one after the other, with a seed of its
own; the last ones are ``--harmful-swap``. What a run must show is checked here and written beside
its figures, with the load of the machine; the exit code is 1 unless every run shows everything.
Results are in benchmarks/results/demo_series.json; nothing is left out, failed runs are in it as
well.
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
    "each run is `retuned demo --yes --device cpu` with a seed of its own, one after the other; "
    "load_average is that of one minute before and after the run, to which the demo adds two; "
    "server on one core, client, daemon and lab on the other; tokens count prompt and output; the "
    "effect of a swap on the server is the verdict of the daemon's live proof, whose interval "
    "holds all effects that neither side rejects at 1 %"
)


def one_run(seed: int, folder: Path, *, harmful: bool) -> dict[str, Any]:
    """Run the demo once and reduce its record to what the series is about."""
    begin, load = time.monotonic(), os.getloadavg()[0]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "retuned.cli", "demo", "--yes", "--json", "--device", "cpu"),
            *("--seed", str(seed), "--html", str(folder / "report.html")),
            *(("--harmful-swap",) if harmful else ()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * MAX_S,
    )
    took_s = time.monotonic() - begin
    found = {
        "seed": seed,
        "plot": "harmful" if harmful else "helpful",
        "exit": done.returncode,
        "took_s": round(took_s, 1),
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    if "{" not in done.stdout:
        return {**found, "missing": [done.stderr[-2000:]]}
    record = json.loads(done.stdout[done.stdout.index("{") :])
    return {
        **found,
        "requests": record["requests"],
        "tokens_per_s": {k: round(v, 1) for k, v in record["tokens_per_s"].items()},
        "swaps": record["swaps"],
        "hypotheses": [(h["definition"], h["attempt"]) for h in record["hypotheses"]],
        "candidates": sum(e["candidates"] for e in record["experiments"]),
        "rollback": record["rollback"],
        "drift": record["drift"]["sentence"],
        "missing": missing(record, took_s=took_s),
    }


def missing(record: dict[str, Any], *, took_s: float) -> list[str]:
    """Name what a run promised and did not show; empty is good.

    What the demo itself requires comes first: verdicts of live proofs among it.
    """
    requests = record["requests"]
    shown = {
        "ends within six minutes": took_s < MAX_S,
        "every request is served": requests["sent"] == requests["ok"] > 0 == requests["failed"],
        "the drift is found": bool(record["drift"]["detected"]),
    }
    return [*record["shortcomings"], *(what for what, holds in shown.items() if not holds)]


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
    parser.add_argument("--harmful", type=int, default=2, help="runs with a harmful swap, after")
    options = parser.parse_args()
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    runs: list[dict[str, Any]] = []
    for seed in range(options.runs + options.harmful):
        runs.append(one_run(seed, folder, harmful=seed >= options.runs))
        print(json.dumps({k: runs[-1].get(k) for k in ("seed", "plot", "took_s", "load_average")}))
        print(f"  missing: {runs[-1]['missing'] or 'nothing'}", flush=True)
        good = sum(not run["missing"] for run in runs)
        body = {"machine": machine(), "method": METHOD, "good": good, "of": len(runs), "runs": runs}
        RESULT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 0 if all(not run["missing"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
