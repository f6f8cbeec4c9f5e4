"""Launch counts from the server's slots, combined with times from its traces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from retuned.stages.profile.records import Signature, SignatureStat, WorkloadProfile

Counts = Mapping[str, Mapping[str, int]]
"""Launches by slot and by lengths such as ``4`` or ``1x256``: the variable axes in their order."""


def together(windows: Iterable[Counts]) -> dict[str, dict[str, int]]:
    """Add up the counts of several windows.

    Examples
    --------
    >>> together([{"gemm": {"4": 1}}, {"gemm": {"4": 2, "8": 1}}])
    {'gemm': {'4': 3, '8': 1}}
    """
    added: dict[str, Counter[str]] = defaultdict(Counter)
    for window in windows:
        for slot, counts in window.items():
            added[slot].update(counts)
    return {slot: dict(counts) for slot, counts in added.items()}


def key_of(lengths: Iterable[int]) -> str:
    """Return lengths as counts spell them.

    Examples
    --------
    >>> key_of((1, 256))
    '1x256'
    """
    return "x".join(str(length) for length in lengths)


def recount(profile: WorkloadProfile, counted: Mapping[Signature, int]) -> WorkloadProfile:
    """Replace sampled launches by counted ones; uncounted signatures are scaled by the same rate.

    A trace contains a few of a window's steps with good times; slots count every launch and time
    none. If the counters are below the trace, the window stays unchanged: the counters then
    describe another moment, such as after a restart of the server.

    Parameters
    ----------
    profile
        One window, sampled.
    counted
        Launches in the whole window of the signatures that are slots.

    Examples
    --------
    >>> stats = (
    ...     SignatureStat(signature=Signature(kernel="slot"), launches=2, gpu_time_ns=200,
    ...                   median_ns=100),
    ...     SignatureStat(signature=Signature(kernel="other"), launches=1, gpu_time_ns=50,
    ...                   median_ns=50),
    ... )
    >>> window = WorkloadProfile(window_start_ns=0, window_ns=900, observed_ns=90, stats=stats)
    >>> whole = recount(window, {Signature(kernel="slot"): 20})
    >>> [(stat.launches, stat.gpu_time_ns) for stat in whole.stats], whole.observed_ns
    ([(20, 2000), (10, 500)], 900)
    >>> window.counted, whole.counted
    (False, True)
    """
    seen = [stat for stat in profile.stats if stat.signature in counted]
    sampled = sum(stat.launches for stat in seen)
    total = sum(counted[stat.signature] for stat in seen)
    if sampled == 0 or total < sampled:
        return profile
    rate = total / sampled
    stats = [_scaled(stat, counted.get(stat.signature), rate) for stat in profile.stats]
    return profile.model_copy(
        update={
            "stats": tuple(sorted(stats, key=lambda stat: -stat.gpu_time_ns)),
            "observed_ns": max(profile.observed_ns, profile.window_ns),
            "counted": True,
        }
    )


def _scaled(stat: SignatureStat, counted: int | None, rate: float) -> SignatureStat:
    if stat.launches == 0:
        return stat
    launches = round(stat.launches * rate) if counted is None else max(counted, stat.launches)
    gpu_time_ns = round(stat.gpu_time_ns * launches / stat.launches)
    return stat.model_copy(update={"launches": launches, "gpu_time_ns": gpu_time_ns})
