"""What folding costs: microseconds a launch, and memory while distinct keys flood in."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from retuned.stages.profile import ProfileBuilder
from retuned.stages.trace import LaunchRecord, ShapeSource

_ROUNDS = 15
_LAUNCHES = 50_000


def folding_cost() -> dict[str, Any]:
    """Median and quartiles over rounds, empty loops over the same records taken off.

    CPU time, so that other work on a shared machine disturbs little.
    """
    rng = random.Random(0)
    launches = [
        LaunchRecord(
            kernel=f"kernel{rng.randrange(8)}",
            start_ns=n,
            duration_ns=rng.randrange(10_000, 13_000),
            dims=((rng.randrange(1, 257), 4096), (4096, 4096)),
            dtypes=("bf16", "bf16"),
            shape_source=ShapeSource.OP,
            shape_confidence=0.9,
        )
        for n in range(_LAUNCHES)
    ]
    costs_us = []
    for _ in range(_ROUNDS):
        folder = ProfileBuilder()
        started = time.process_time()
        for launch in launches:
            folder.add(launch)
        filled = time.process_time()
        for _launch in launches:
            pass
        costs_us.append((2 * filled - started - time.process_time()) / _LAUNCHES * 1e6)
    low, middle, high = statistics.quantiles(costs_us, n=4)
    return {
        "add_us": {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]},
        "raw_us": [round(cost, 3) for cost in costs_us],
        "core_at_10k_per_s": round(middle * 1e-6 * 10_000, 4),
        **_apart(),
    }


def _apart() -> dict[str, Any]:
    """Flood in a separate process, so that nothing else counts as memory."""
    command = [sys.executable, "-c", f"import {__name__} as c, json; print(json.dumps(c.flood()))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def flood() -> dict[str, Any]:
    """Feed 1.2 million keys that never come again; memory after the first 200,000 is the base."""
    empty_kib = _rss_kib()
    folder = ProfileBuilder()
    base_kib, started = 0, time.process_time()
    for n in range(1_200_000):
        if n == 200_000:
            base_kib, started = _rss_kib(), time.process_time()
        folder.add(LaunchRecord(kernel=f"k{n}", start_ns=n, duration_ns=1_000 + n % 977))
    seconds = time.process_time() - started
    grown_kib = _rss_kib() - base_kib
    kept = folder.profile(window_start_ns=0, window_ns=1, observed_ns=1)
    return {
        "distinct_keys": 1_000_000,
        "distinct_key_us": round(seconds, 3),
        "rss_growth_mib": round(grown_kib / 1024, 2),
        "rss_of_a_full_folder_mib": round((base_kib - empty_kib) / 1024, 1),
        "signatures_kept": len(kept.stats),
    }


def _rss_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
