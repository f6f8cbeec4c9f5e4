"""Two profiles compared without history, for ``retuned diff``."""

from __future__ import annotations

from math import log, sqrt

import numpy as np

from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import Library, LibraryProfile, Reading, read
from retuned.stages.drift.text import REASONS_MAX, rate, sentence, share_reasons
from retuned.stages.profile import WorkloadProfile


def compare(
    before: WorkloadProfile, after: WorkloadProfile, *, settings: DriftSettings | None = None
) -> DriftReport:
    """Report how the second profile differs from the first.

    Drift is: new signatures above ``new_share`` of the kernel time; or a divergence beyond
    ``diff_distance`` plus twice what sampling alone brings, ``(K - 1) / (8 ln 2) (1/n1 + 1/n2)``
    for K signatures and n effective launches; or one signature's share moved by ``diff_share`` and
    four standard errors; or launches per second changed ``diff_rate_ratio`` times. The effective
    launches discount unequal durations (Kish 1965). Without history, this cannot estimate how often
    ordinary traffic does the same; use `detect` for that.

    Parameters
    ----------
    before, after
        Two windows of the same server. One without kernel time is never drift.

    Examples
    --------
    >>> from retuned.stages.profile import Signature, SignatureStat
    >>> def key(kernel):
    ...     return Signature(kernel=kernel, dims=((8, 64),))
    >>> def profile(**times):
    ...     return WorkloadProfile(window_start_ns=0, window_ns=10, observed_ns=10**9, stats=tuple(
    ...         SignatureStat(signature=key(kernel), launches=1000, gpu_time_ns=time,
    ...                       median_ns=time // 1000) for kernel, time in times.items()))
    >>> report = compare(profile(gemm=90_000, rms=10_000), profile(gemm=40_000, rms=60_000))
    >>> report.detected, report.reasons[0].share_before, report.reasons[0].share_after
    (True, 0.1, 0.6)
    >>> compare(profile(gemm=90_000, rms=10_000), profile(gemm=91_000, rms=10_000)).detected
    False
    """
    settings = settings or DriftSettings()
    if before.gpu_time_ns <= 0 or after.gpu_time_ns <= 0:
        return _report(after, None, (), DriftAction.NONE, skipped="no-gpu-time")
    library = _library(before)
    reading = read(after, library, settings.model_copy(update={"time_power": 1.0}))
    reasons = share_reasons(reading, library)
    rate = _rate_reason(before, after, settings)
    inverse = 1 / effective_launches(before) + 1 / effective_launches(after)
    keys = int(np.count_nonzero(library.envelope + reading.shares))
    noise = max(0, keys - 1) / (8 * log(2)) * inverse
    moved = any(
        abs(r.share_after - r.share_before) > max(settings.diff_share, 4 * _error(r, inverse))
        for r in reasons
    )
    mixed = reading.distance > settings.diff_distance + 2 * noise
    new = reading.new_share > settings.new_share
    action = DriftAction.NONE
    if moved or mixed or new or rate:
        worth = reading.uncovered >= settings.uncovered_share
        action = DriftAction.RETUNE if worth else DriftAction.ADOPT
        if rate and not (moved or mixed or new):  # small moves of other signatures are not a reason
            reasons = [rate, *reasons[: REASONS_MAX - 1]]
        elif rate:
            reasons = [*reasons[: REASONS_MAX - 1], rate]
    return _report(after, reading, tuple(reasons), action)


def effective_launches(profile: WorkloadProfile) -> float:
    """Return how many equally long launches would carry as much information, at least 1."""
    time = sum(stat.gpu_time_ns for stat in profile.stats)
    squares = sum(stat.gpu_time_ns**2 / max(1, stat.launches) for stat in profile.stats)
    return max(1.0, time**2 / squares) if squares > 0 else 1.0


def _error(reason: DriftReason, inverse: float) -> float:
    """Return the standard error of a difference of shares, assuming that they are equal."""
    share = (reason.share_before + reason.share_after) / 2
    return sqrt(share * (1 - share) * inverse)


def _library(profile: WorkloadProfile) -> Library:
    stats = [stat for stat in profile.stats if stat.gpu_time_ns > 0]
    total = sum(stat.gpu_time_ns for stat in stats)
    shares = tuple(stat.gpu_time_ns / total for stat in stats)
    return Library(
        keys=tuple(stat.signature for stat in stats),
        medians_ns=tuple(float(stat.median_ns) for stat in stats),
        tuned_share=shares,
        profiles=(
            LibraryProfile(
                indexes=tuple(range(len(stats))), shares=shares, weights=shares, tuned=True
            ),
        ),
    )


def _rate_reason(
    before: WorkloadProfile, after: WorkloadProfile, settings: DriftSettings
) -> DriftReason | None:
    """Return why the launch rate counts as changed; None if it did not or is unknown."""
    if before.observed_ns <= 0 or after.observed_ns <= 0:
        return None
    was = before.launches / (before.observed_ns / 1e9)
    now = after.launches / (after.observed_ns / 1e9)
    if 1 / settings.diff_rate_ratio < now / was < settings.diff_rate_ratio:
        return None
    return DriftReason(
        code=DriftCode.FREQUENCY_CHANGED,
        kernel="",  # this reason concerns the whole workload
        share_before=0.0,
        share_after=0.0,
        detail=f"launches per second went from {rate(was)} to {rate(now)}",
    )


def _report(
    after: WorkloadProfile,
    reading: Reading | None,
    reasons: tuple[DriftReason, ...],
    action: DriftAction,
    *,
    skipped: str = "",
) -> DriftReport:
    detected = action is not DriftAction.NONE
    uncovered = reading.uncovered if reading else 0.0
    told = sentence(detected=detected, action=action, reasons=reasons, uncovered=uncovered)
    return DriftReport(
        detected=detected,
        action=action,
        reasons=reasons[:REASONS_MAX] if detected else (),
        distance=reading.distance if reading else 0.0,
        uncovered_share=uncovered,
        new_share=reading.new_share if reading else 0.0,
        window_start_ns=after.window_start_ns,
        skipped=skipped,
        sentence="One of the two profiles has no kernel time." if skipped else told,
    )
