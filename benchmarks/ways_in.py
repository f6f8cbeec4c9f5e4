"""What an injected sitecustomize costs a Python that starts.

    python benchmarks/ways_in.py [--rounds 60]

Subjects, each a separate process, interleaved within a round:

- `bare`: nothing injected;
- `off`: injected, with RETUNED_RUNTIME=off;
- `waiting`: injected; the program never imports PyTorch;
- `bare-import` and `joined`: the program imports a module `torch` that only imports modules of the
  standard library that PyTorch imports, too; the difference is what joining adds to its seconds.

Raw numbers, CPU time (user and system) in ms, are in benchmarks/results/ways_in.json, with the
median of the differences within rounds and its 95 % interval by order statistics.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import retuned.runtime.site

RESULT = Path(__file__).resolve().parent / "results" / "ways_in.json"
SITE = str(Path(retuned.runtime.site.__file__).parent)
IMPORTED = (
    *("ast", "concurrent.futures", "ctypes", "dataclasses", "email.message", "hashlib"),
    *("importlib.metadata", "importlib.resources", "inspect", "json", "logging", "socket"),
)
WITH = {"RETUNED_SOCKET_DIR": "/nowhere"}


def subjects(lib: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Program and environment of each subject."""
    injected = {"PYTHONPATH": SITE, **WITH}
    both = {"PYTHONPATH": os.pathsep.join((SITE, lib)), **WITH}
    return {
        "bare": ("pass", {"PYTHONPATH": lib, **WITH}),
        "off": ("pass", {**injected, "RETUNED_RUNTIME": "off"}),
        "waiting": ("pass", injected),
        "bare-import": ("import torch", {"PYTHONPATH": lib, **WITH}),
        "joined": ("import torch", both),
    }


def cpu_ms(program: str, variables: dict[str, str]) -> float:
    """Run one process; return its CPU time."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RETUNED_", "PYTHON"))}
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], clean | variables)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{program!r} failed")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def interval(values: list[float]) -> dict[str, float]:
    """Median and its 95 % interval by order statistics."""
    ranked = sorted(values)
    reach = math.ceil(1.96 * math.sqrt(len(ranked)) / 2)
    middle = len(ranked) // 2
    return {
        "median": statistics.median(ranked),
        "lower": ranked[max(0, middle - reach)],
        "upper": ranked[min(len(ranked) - 1, middle + reach)],
    }


def machine() -> dict[str, Any]:
    """Describe this machine without naming it."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*:\s*(.+)", text)
    return {
        "cpu": model.group(1).strip() if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as lib:
        (Path(lib) / "torch.py").write_text(f"import {', '.join(IMPORTED)}\n")
        asked = subjects(lib)
        times: dict[str, list[float]] = {name: [] for name in asked}
        for index in range(rounds + 2):
            for name, (program, variables) in asked.items():
                found = cpu_ms(program, variables)
                if index >= 2:  # the first write bytecode
                    times[name].append(found)
    pairs = {"off": "bare", "waiting": "bare", "joined": "bare-import"}
    over = {
        name: interval([a - b for a, b in zip(times[name], times[base], strict=True)])
        for name, base in pairs.items()
    }
    body = {
        "method": (__doc__ or "").strip(),
        "machine": machine(),
        "unit": "ms",
        "over_bare": over,
        "numbers": times,
    }
    RESULT.write_text(json.dumps(body, indent=1) + "\n")
    for name, each in over.items():
        print(f"{name}: {each['median']:.2f} ms ({each['lower']:.2f} to {each['upper']:.2f})")


if __name__ == "__main__":
    main()
