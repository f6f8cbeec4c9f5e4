"""Detectors side by side: ours, and three that people would reach for first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from benchmarks.drift_sim.engine import BUCKETS
from benchmarks.drift_sim.streams import NEW_KEY_PART, Histograms, profiles
from benchmarks.drift_sim.traffic import Floats
from river.drift import ADWIN

from retuned.stages.drift import DetectorState, DriftAction, DriftSettings, adopt, detect
from retuned.stages.profile import WorkloadProfile, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm."""

    window: int
    """10-minute window of the stream at whose end it was raised."""
    action: str
    """What follows; ``alarm`` for detectors that know nothing else."""


class Detector(Protocol):
    """Anything that watches a stream."""

    name: str

    def alarms(self, stream: Histograms) -> Iterator[Alarm]:
        """Watch a stream from its first window on, in a fresh state after the baseline."""
        ...


class Retuned:
    """The detector of this project, run as the sidecar runs it.

    With `adapts` a window that asks for a retune counts as tuned for from then on; else nothing is
    ever taken over and every window is judged against the baseline alone.
    """

    def __init__(
        self, state: DetectorState, settings: DriftSettings, *, adapts: bool = True
    ) -> None:
        self.name = "retuned" if adapts else "retuned, frozen library"
        self._state = state
        self._settings = settings
        self._adapts = adapts

    def alarms(self, stream: Histograms) -> Iterator[Alarm]:
        """Watch a stream."""
        state = self._state
        recent: list[WorkloadProfile] = []
        for window, profile in enumerate(profiles(stream)):
            recent = [*recent[-5:], profile]
            report, state = detect(profile, state=state, settings=self._settings)
            if not report.detected:
                continue
            yield Alarm(window=window, action=report.action.value)
            if not self._adapts:
                state = self._state.model_copy(update={"pending": state.pending})
            elif report.action is DriftAction.RETUNE:
                state = adopt(state, merge(recent), tuned=True, settings=self._settings)


def _with_new_key(table: Floats, stream: Histograms) -> Floats:
    """Add the bin of the new key, which takes its part of every other one; rows are hours."""
    drifted = np.arange(len(table)) >= stream.hourly().new_key_since
    part = np.where(drifted & stream.new_key, NEW_KEY_PART, 0.0)[:, None]
    widened: Floats = np.hstack([table * (1 - part), table.sum(axis=1, keepdims=True) * part])
    return widened


class ChiSquared:
    """Pearson's test of an hour's step counts against the baseline's mean mix, p < 0.001."""

    name = "chi-squared, p < 0.001"

    def __init__(self, baseline: Histograms) -> None:
        total = _with_new_key(baseline.counts.astype(float), baseline).sum(axis=0)
        self._mix = (total + 0.5) / (total + 0.5).sum()

    def alarms(self, stream: Histograms) -> Iterator[Alarm]:
        """Watch a stream."""
        for hour, counts in enumerate(_with_new_key(stream.hourly().counts.astype(float), stream)):
            expected = self._mix * counts.sum()
            kept = expected >= 5  # the usual rule; all rarer bins are one
            rest = max(0.5, float(expected[~kept].sum()))
            statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
            statistic += (float(counts[~kept].sum()) - rest) ** 2 / rest
            if _normal_score(statistic, int(kept.sum())) > 3.09:
                yield Alarm(window=6 * hour + 5, action="alarm")


def _normal_score(chi2: float, freedom: int) -> float:
    """Wilson and Hilferty's cube root: chi-squared to a normal score."""
    spread = 2 / (9 * freedom)
    return float(((chi2 / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


class Psi:
    """Population stability index of an hour's GPU-time shares against the baseline, > 0.25."""

    name = "PSI > 0.25"

    def __init__(self, baseline: Histograms) -> None:
        self._mix = self._floored(_with_new_key(baseline.time_s, baseline).sum(axis=0))

    @staticmethod
    def _floored(time: Floats) -> Floats:
        shares = np.maximum(time / time.sum(), 1e-4)
        floored: Floats = shares / shares.sum()
        return floored

    def alarms(self, stream: Histograms) -> Iterator[Alarm]:
        """Watch a stream."""
        for hour, time in enumerate(_with_new_key(stream.hourly().time_s, stream)):
            shares = self._floored(time)
            if float(((shares - self._mix) * np.log(shares / self._mix)).sum()) > 0.25:
                yield Alarm(window=6 * hour + 5, action="alarm")


class Adwin:
    """River's ADWIN at its defaults on log2 M: the hourly mean, or 100 single steps an hour."""

    def __init__(self, baseline: Histograms, *, per_hour: int, seed: int) -> None:
        self.name = "ADWIN, hourly mean" if per_hour == 1 else f"ADWIN, {per_hour} steps an hour"
        self._per_hour = per_hour
        self._seed = seed
        self._baseline = self._values(baseline, np.random.default_rng(seed))

    def _values(self, stream: Histograms, generator: np.random.Generator) -> Floats:
        """Observations, shape (hours, per hour)."""
        counts = stream.hourly().counts
        mix = counts / counts.sum(axis=1, keepdims=True)
        logs = np.log2(np.array(BUCKETS, dtype=float))
        if self._per_hour == 1:
            means: Floats = (mix @ logs)[:, None]
            return means
        draws = generator.random((len(mix), self._per_hour))
        cumulative = np.cumsum(mix, axis=1)
        places = (draws[:, :, None] > cumulative[:, None, :]).sum(axis=2)
        drawn: Floats = logs[np.minimum(places, len(logs) - 1)]
        return drawn

    def alarms(self, stream: Histograms) -> Iterator[Alarm]:
        """Watch a stream."""
        adwin = ADWIN()
        for value in self._baseline.ravel():
            adwin.update(float(value))
        values = self._values(stream, np.random.default_rng(self._seed + 1))
        for hour, row in enumerate(values):
            fired = False
            for value in row:
                adwin.update(float(value))
                fired = fired or adwin.drift_detected
            if fired:
                yield Alarm(window=6 * hour + 5, action="alarm")
