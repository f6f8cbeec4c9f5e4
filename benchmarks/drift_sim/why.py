"""How much ordinary traffic moves by itself: what no detector of a shift can be silent about."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.drift_sim.detectors import Retuned
from benchmarks.drift_sim.scoring import distinct, rate
from benchmarks.drift_sim.streams import DAY, WEEK, Histograms, joined, profiles
from benchmarks.drift_sim.traffic import Floats

from retuned.stages.drift import DetectorState, DriftSettings, learn
from retuned.stages.drift.state import read
from retuned.stages.profile import merge

LARGE = 0.2


def ordinary_moves(natural: Histograms) -> dict[str, Any]:
    """Ordinary hours a day in which a fifth of the GPU time moved, against two usual references."""
    time = natural.hourly().time_s
    shares = time / time.sum(axis=1, keepdims=True)
    found = {}
    for name, lag in (("the_hour_before", 1), ("the_same_hour_a_day_before", 24)):
        moved = np.abs(shares[lag:] - shares[:-lag]).sum(axis=1) / 2
        found[f"against_{name}"] = {
            "hours_a_day_with_20_percent": round(24 * float(np.mean(moved >= LARGE)), 2),
            "median_share_moved": round(float(np.median(moved)), 3),
        }
    return found


def distance(state: DetectorState, settings: DriftSettings, stream: Histograms) -> float:
    """Divergence of a whole stream, merged, from the nearest known mix, bits."""
    return read(merge(profiles(stream)), state.library, settings).distance


def ordinary_distances(
    state: DetectorState, settings: DriftSettings, ordinary: Histograms
) -> Floats:
    """Divergence of every two hours of ordinary traffic, no adoption, bits."""
    return np.array(
        [distance(state, settings, ordinary[at : at + 12]) for at in range(0, WEEK - 11, 12)]
    )


def unseen_days(natural: Histograms, settings: DriftSettings, *, seed: int) -> dict[str, Any]:
    """Alarms on each day of week 1 after learning from the six others only."""
    alarms = 0
    for day in range(7):
        first, last = day * DAY, (day + 1) * DAY
        others = joined([natural[:first], natural[last:WEEK]])
        state = learn(profiles(others), settings=settings, seed=seed)
        alarms += len(distinct(Retuned(state, settings).alarms(natural[first:last])))
    return rate(alarms, 7.0)
