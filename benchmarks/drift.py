"""The drift detector on real weeks, beside chi-squared, PSI and ADWIN.

Run as ``python -m benchmarks.drift``; about ten minutes on one core. Two weeks of
production-derived traffic (ServeGen m-large) become kernel histograms by a seeded simulator of
continuous batching (``benchmarks/drift_sim``). Every detector learns from week 1. In control: days
of week 1 drawn with replacement and simulated with fresh seeds. Ordinary: week 2 as it came.
Drifts: seven, injected at random hours. Settings were chosen on seeds 101 and 102, not on the seeds
here. Writes benchmarks/results/drift.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.drift_sim.cost import folding_cost
from benchmarks.drift_sim.detectors import Adwin, Alarm, ChiSquared, Detector, Psi, Retuned
from benchmarks.drift_sim.scoring import detection, distinct, rate
from benchmarks.drift_sim.streams import (
    DAY,
    DRIFTS,
    STEPS,
    WARM_STEPS,
    WEEK,
    WHAT,
    Histograms,
    World,
    joined,
    profiles,
    run,
)
from benchmarks.drift_sim.traffic import Floats

from retuned.stages.drift import DriftSettings, learn
from retuned.stages.drift.state import tally
from retuned.stages.profile import merge

SHARED = Path(__file__).parents[1] / ".." / "shared" / "workloads"
RESULT = Path(__file__).parent / "results" / "drift.json"
Place = Callable[[Histograms], Floats]
BEFORE = 12
"""Ordinary windows before an injection: 2 h."""
SHIFT_H = 2
"""Hours after an injection over which its size is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One drift in one place."""

    drift: str
    """Which."""
    stream: Histograms
    """Two ordinary hours, then 24 drifted ones."""
    shift: float
    """GPU time that moved against the same hours without the drift (total variation)."""
    novel_shift: float
    """GPU time that lies elsewhere than in the nearest library profile (total variation)."""


class Tally:
    """What one detector did, over all seeds."""

    def __init__(self) -> None:
        self.control: list[Alarm] = []
        self.control_days = 0.0
        self.ordinary: list[Alarm] = []
        self.retunes = 0
        self.ordinary_days = 0.0
        self.delays: dict[str, list[float | None]] = defaultdict(list)
        self.shifts: list[tuple[str, float, float, float | None]] = []
        self.actions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.seconds = 0.0

    def watch(self, detector: Detector, control: Histograms, ordinary: Histograms) -> None:
        """Count alarms without injected drift."""
        started = time.perf_counter()
        self.control += distinct(detector.alarms(control))
        self.control_days += len(control.counts) / DAY
        alarms = list(detector.alarms(ordinary))
        self.ordinary += distinct(alarms)
        self.retunes += sum(alarm.action == "retune" for alarm in alarms)
        self.ordinary_days += len(ordinary.counts) / DAY
        self.seconds += time.perf_counter() - started

    def inject(self, detector: Detector, injection: Injection) -> None:
        """Find one drift."""
        started = time.perf_counter()
        first: Alarm | None = None
        action = "none"
        for alarm in detector.alarms(injection.stream):
            if alarm.window < BEFORE:
                continue
            first = first or alarm
            action = "retune" if alarm.action == "retune" else first.action
            if action in ("retune", "alarm"):
                break
        delay = None if first is None else (first.window + 1 - BEFORE) / 6
        self.delays[injection.drift].append(delay)
        self.shifts.append((injection.drift, injection.shift, injection.novel_shift, delay))
        self.actions[injection.drift][action] += 1
        self.seconds += time.perf_counter() - started

    def report(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {
            "in_control": rate(len(self.control), self.control_days),
            "ordinary_week": rate(len(self.ordinary), self.ordinary_days),
            "retunes_ordinary_week": rate(self.retunes, self.ordinary_days),
            "drifts": {drift: detection(self.delays[drift]) for drift in DRIFTS},
            "answers_within_24h": {drift: dict(self.actions[drift]) for drift in DRIFTS},
            "shift_of_20_percent": {
                "from_every_known_mix": self._large(1),
                "from_the_hours_before": self._large(0),
            },
            "seconds": round(self.seconds, 1),
        }

    def _large(self, measure: int) -> dict[str, Any]:
        return detection([row[3] for row in self.shifts if (row[1], row[2])[measure] >= 0.2])


def injections(
    world: World, library_mixes: Floats, place: Place, *, generator: np.random.Generator, count: int
) -> Iterator[Injection]:
    """Draw `count` places in week 1 and inject each drift into each."""
    starts = generator.integers(WEEK // 6, size=count) * 6
    windows = (starts[:, None] + np.arange(-BEFORE, DAY)) % WEEK
    ages = np.tile(np.arange(DAY), count)
    length = BEFORE + DAY
    ordinary = run(world, windows.ravel(), generator=generator)
    for drift in DRIFTS:
        drifted = (
            None
            if drift == "D6"
            else run(
                world, windows[:, BEFORE:].ravel(), generator=generator, drift=drift, since=ages
            )
        )
        for i in range(count):
            twin = ordinary[i * length : (i + 1) * length]
            after = twin[BEFORE:] if drifted is None else drifted[i * DAY : (i + 1) * DAY]
            parts = joined([twin[:BEFORE], after])
            first = _marked(after, drift)[: 6 * SHIFT_H]
            mix, old = place(first), place(twin[BEFORE : BEFORE + 6 * SHIFT_H])
            yield Injection(
                drift=drift,
                stream=Histograms(
                    counts=parts.counts,
                    tokens=parts.tokens,
                    span_s=parts.span_s,
                    new_key=drift == "D6",
                    new_key_since=BEFORE,
                ),
                shift=float(np.abs(mix - old).sum() / 2),
                novel_shift=float(np.abs(library_mixes - mix).sum(axis=1).min() / 2),
            )


def _marked(stream: Histograms, drift: str) -> Histograms:
    return Histograms(
        counts=stream.counts,
        tokens=stream.tokens,
        span_s=stream.span_s,
        new_key=drift == "D6",
    )


def one_seed(
    world: World, tallies: dict[str, Tally], *, seed: int, days: int, count: int
) -> dict[str, Any]:
    """Run every detector on every stream of one seed."""
    generator = np.random.default_rng(seed)
    natural = run(world, np.arange(2 * WEEK), generator=generator)
    picks = generator.integers(7, size=days)[:, None] * DAY + np.arange(DAY)
    control = run(world, picks.ravel(), generator=generator)
    baseline, ordinary = natural[:WEEK], natural[WEEK:]
    settings = DriftSettings()
    started = time.perf_counter()
    state = learn(profiles(baseline), settings=settings, seed=seed)
    learn_s = time.perf_counter() - started
    detectors: list[Detector] = [
        Retuned(state, settings),
        ChiSquared(baseline),
        Psi(baseline),
        Adwin(baseline, per_hour=1, seed=seed),
        Adwin(baseline, per_hour=100, seed=seed),
    ]
    for detector in detectors:
        tallies.setdefault(detector.name, Tally()).watch(detector, control, ordinary)
    library = state.library

    def place(stream: Histograms) -> Floats:
        return tally(merge(profiles(stream)).stats, library, power=1.0)[0]

    for injection in injections(world, library.shares, place, generator=generator, count=count):
        for detector in detectors:
            tallies[detector.name].inject(detector, injection)
    return {
        "seed": seed,
        "learn_s": round(learn_s, 2),
        "classes": [size.model_dump() for size in state.classes],
        "new_share": state.new_share,
        "state_bytes": len(state.model_dump_json()),
    }


def targets(ours: dict[str, Any], cost: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare with the budget, one row each, missed ones included."""
    large = ours["shift_of_20_percent"]
    rows = [
        ("alarms a day in control", ours["in_control"]["per_day"], "<=", 0.15),
        (
            "shift of >= 20 % of GPU time, found within 2 h (the budget as written)",
            large["from_the_hours_before"].get("within_2h", 0.0),
            ">=",
            0.95,
        ),
        (
            "the same for shifts of >= 20 % away from every known mix (a narrower reading)",
            large["from_every_known_mix"].get("within_2h", 0.0),
            ">=",
            0.95,
        ),
        ("retunes a day on an ordinary week", ours["retunes_ordinary_week"]["per_day"], "<=", 0.3),
        ("new key within 1 h", ours["drifts"]["D6"]["within_1h"], ">=", 1.0),
        ("ramp within 24 h", ours["drifts"]["D5"]["within_24h"], ">=", 0.75),
        ("core used at 10,000 events a second", cost["core_at_10k_per_s"], "<=", 0.01),
        ("MiB grown over 10^6 distinct keys", cost["rss_growth_mib"], "<=", 1.0),
    ]
    return [
        {
            "what": what,
            "measured": value,
            "bound": f"{sign} {bound}",
            "met": value <= bound if sign == "<=" else value >= bound,
        }
        for what, value, sign, bound in rows
    ]


def machine() -> dict[str, Any]:
    """Describe this machine without naming it."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", text)
    return {
        "cpu": model.group(1).strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="test seeds, from 1")
    parser.add_argument("--days", type=int, default=28, help="in-control days per seed")
    parser.add_argument("--injections", type=int, default=12, help="per drift and seed")
    parser.add_argument("--workloads", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    started = time.perf_counter()
    cost = folding_cost()
    print(f"folding: {cost}", flush=True)
    world = World.load(options.workloads)
    tallies: dict[str, Tally] = {}
    seeds = []
    for seed in range(1, options.seeds + 1):
        row = one_seed(world, tallies, seed=seed, days=options.days, count=options.injections)
        seeds.append(row)
        print(f"seed {seed} done after {time.perf_counter() - started:.0f} s", flush=True)
    detectors = {name: done.report() for name, done in tallies.items()}
    rows = targets(detectors["retuned"], cost)
    result = {
        "method": method(options, seeds),
        "machine": machine(),
        "targets": rows,
        "detectors": detectors,
        "folding": cost,
        "seconds": round(time.perf_counter() - started, 1),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    show(detectors, rows)


def method(options: argparse.Namespace, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Say how it was measured, and what the numbers do not say."""
    return {
        "text": " ".join((__doc__ or "").split()),
        "drifts": WHAT,
        "seeds": seeds,
        "days_in_control_per_seed": options.days,
        "injections_per_drift_and_seed": options.injections,
        "steps_per_window": {"warm": WARM_STEPS, "counted": STEPS},
        "alarms": "after an alarm none is counted for 6 h; delays end with the alarm's window",
        "adoption": "a mix answered with adopt is known from then on; one answered with retune "
        "counts as tuned for at once",
        "caveats": [
            "Days in control are resampled from the week that the library was learned from, so "
            "their alarm rate is optimistic; the ordinary week is the hold-out for it.",
            "About 30 settings were compared on development seeds 101 and 102, which replay the "
            "same two real weeks with other draws. The seeds here are fresh draws, the weeks are "
            "not: retunes and adoptions of week 2 had been seen when settings were chosen.",
            "The narrower reading of the shift budget was introduced during development, after "
            "the budget as written was seen to be missed: a shift into a mix that the library "
            "knows is not novel by design. Both are reported; the first is the budget.",
            "All seeds draw from the same 7 days each: 140 days in control and 35 ordinary ones "
            "are not independent, so the Poisson and Wilson intervals are narrower than the truth.",
            "D6 moves 3 % of GPU time; smaller new keys were not tried.",
            "Two kernels, both functions of the step's M; step times are plausible for an 8B "
            "model, not calibrated. A window observes some 30 s of its 10 minutes.",
        ],
        "settings": DriftSettings().model_dump(),
    }


def show(detectors: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    print(f"\n{'':28}{'control':>9}{'week 2':>8}{'retunes':>9}  found in 24 h / median delay h")
    for name, done in detectors.items():
        cells = "  ".join(
            f"{drift} {d['within_24h']:.2f}/{d['delay_median_h'] or '-'}"
            for drift, d in done["drifts"].items()
        )
        print(
            f"{name:28}{done['in_control']['per_day']:>9.3f}{done['ordinary_week']['per_day']:>8.2f}"
            f"{done['retunes_ordinary_week']['per_day']:>9.2f}  {cells}"
        )
    for row in rows:
        verdict = "met   " if row["met"] else "MISSED"
        print(f"{verdict} {row['what']}: {row['measured']} ({row['bound']})")


if __name__ == "__main__":
    main()
