"""What a run of these tests took, as one JSON object; written only where somebody asked for it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cluster.serving import Counted

VARIABLE = "RETUNED_E2E_REPORT"
"""Names the file: ``make e2e RETUNED_E2E_REPORT=benchmarks/results/e2e.json``."""

_METHOD = {
    "seconds": "wall time since the step before, seen by polls every 0.2 s; nothing is asserted",
    "requests": "each must bring exactly the tokens that were asked for within 180 s",
    "settings": "windows, budgets and bakes are shortened, see tests/cluster/fleet.py",
}


@dataclass(slots=True)
class Report:
    """Filled by fixtures and tests."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of what comes before the tests, and of steps that a test measures."""
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Outcome and seconds by test."""
    requests: dict[str, int] = field(default_factory=lambda: {"sent": 0, "failed": 0, "tokens": 0})
    """Of all traffic together."""
    failures: list[str] = field(default_factory=list)
    """Why requests failed."""
    swaps: dict[str, int] = field(default_factory=dict)
    """What became of proposals."""
    phases: dict[str, float] = field(default_factory=dict)
    """When the proposal came to each phase, seconds after it was made, by the operator's clock."""

    def add(self, counted: Counted) -> None:
        """Count traffic in."""
        self.requests["sent"] += counted.sent
        self.requests["failed"] += len(counted.failed)
        self.failures += counted.failed
        self.requests["tokens"] += counted.tokens

    def note(self, **swaps: int) -> None:
        """Count what became of proposals."""
        for name, count in swaps.items():
            self.swaps[name] = self.swaps.get(name, 0) + count

    def note_phases(self, proposal: Mapping[str, Any]) -> None:
        """Note when a proposal came to its phases."""
        made = datetime.fromisoformat(proposal["metadata"]["creationTimestamp"])
        for number, step in enumerate(proposal["status"]["history"]):
            after_s = (datetime.fromisoformat(step["at"]) - made).total_seconds()
            name = f"{number} {step['to']} {step.get('reason', '')}".strip()
            self.phases[name] = round(after_s, 1)

    def body(self) -> Mapping[str, Any]:
        """Return all of it, with the machine that it was on."""
        return {
            "machine": _machine(),
            "method": _METHOD,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "requests": self.requests,
            "failures": self.failures,
            "swaps": self.swaps,
            "phases": self.phases,
            "passed": sum(each["outcome"] == "passed" for each in self.tests.values()),
            "tests": self.tests,
        }

    def write(self) -> None:
        """Write it where the environment says, if it says."""
        path = os.environ.get(VARIABLE)
        if path:
            Path(path).write_text(json.dumps(self.body(), indent=1) + "\n", "utf-8")


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": sorted(models),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / (1 << 30)),
        "kernel": platform.release(),
        "load_15m": round(os.getloadavg()[2], 1),
    }
