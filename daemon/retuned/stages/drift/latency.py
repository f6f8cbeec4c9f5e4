"""Latency of known work that changed: clocks, driver, a neighbour. Never a reason to retune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from retuned.stages.drift.records import DriftCode, DriftReason
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import Latency, Reading
from retuned.stages.drift.text import shape_text, short
from retuned.stages.profile import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyShift:
    """A hot signature that left its baseline latency."""

    signature: Signature
    before_ns: float
    """Baseline median."""
    now_ns: int
    """Median now."""

    def reason(self, reading: Reading) -> DriftReason:
        """Return the reason for a report, with the signature's share of kernel time."""
        total = max(1, sum(stat.gpu_time_ns for stat in reading.stats))
        held = sum(s.gpu_time_ns for s in reading.stats if s.signature == self.signature)
        shape = shape_text(self.signature)
        ratio = self.now_ns / self.before_ns
        return DriftReason(
            code=DriftCode.LATENCY_SHIFTED,
            kernel=self.signature.kernel,
            shape=shape,
            share_before=held / total,
            share_after=held / total,
            detail=f"{short(self.signature.kernel)}{f' at {shape}' if shape else ''} takes "
            f"{self.now_ns / 1e3:.1f} us instead of {self.before_ns / 1e3:.1f} us "
            f"({ratio:.2f} times)",
        )


def watch_latency(
    reading: Reading, latencies: Sequence[Latency], settings: DriftSettings
) -> tuple[tuple[Latency, ...], tuple[LatencyShift, ...]]:
    """Update both CUSUMs of every watched signature; return them and those that shifted.

    ``z = clip((log(median) - baseline) / scale, -8, 8)``; ``slower = max(0, slower + z - k)`` and
    the mirror image. A sum beyond ``latency_threshold`` is a shift and restarts from 0. For
    independent normal z, k = 1 and h = 10 the mean run between false alarms is above 10^9 roll-ups
    (Siegmund 1985); autocorrelation shortens it. A signature absent from the window keeps its sums.
    """
    medians = {stat.signature: stat.median_ns for stat in reading.stats}
    watched, shifts = [], []
    for watch in latencies:
        median = medians.get(watch.signature, 0)
        if median <= 0:
            watched.append(watch)
            continue
        score = (log(median) - watch.log_ns) / watch.scale
        score = min(settings.latency_score_high, max(-settings.latency_score_high, score))
        slower = max(0.0, watch.slower + score - settings.latency_slack)
        faster = max(0.0, watch.faster - score - settings.latency_slack)
        if max(slower, faster) > settings.latency_threshold:
            before = exp(watch.log_ns)
            shifts.append(LatencyShift(signature=watch.signature, before_ns=before, now_ns=median))
            slower = faster = 0.0
        watched.append(watch.model_copy(update={"slower": slower, "faster": faster}))
    return tuple(watched), tuple(shifts)
