"""Profiles to one, and which duration mode of one window is which of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log

from retuned.stages.profile.records import (
    OTHER,
    ProfileSettings,
    Signature,
    SignatureStat,
    WorkloadProfile,
    capped,
)
from retuned.stages.trace import ShapeSource

_RANK = {source: rank for rank, source in enumerate(ShapeSource)}


def aligned(
    stats: Iterable[SignatureStat],
    known: Mapping[Signature, float],
    *,
    gap_ratio: float,
) -> list[SignatureStat]:
    """Give every duration mode the number under which it is known.

    A window numbers its modes from the shortest; a window without the short ones would otherwise
    call the long one 0. Modes of one geometry are matched by median, nearest on the log scale and
    within `gap_ratio`; what matches nothing known gets the next free number. Signatures with dims
    have no modes and stay.

    Parameters
    ----------
    stats
        Signatures of one window.
    known
        Median duration, ns, of each known signature.
    gap_ratio
        Factor between medians from which two modes are two.
    """
    modes: dict[Signature, dict[int, float]] = {}
    for signature, median_ns in known.items():
        if not signature.dims:
            base = signature.model_copy(update={"mode": 0}) if signature.mode else signature
            modes.setdefault(base, {})[signature.mode] = median_ns
    return [_renumbered(stat, modes, gap_ratio) for stat in stats]


def _renumbered(
    stat: SignatureStat, modes: dict[Signature, dict[int, float]], gap_ratio: float
) -> SignatureStat:
    signature = stat.signature
    if signature.dims or signature.kernel == OTHER:
        return stat
    base = signature.model_copy(update={"mode": 0}) if signature.mode else signature
    known = modes.setdefault(base, {})
    median = max(1, stat.median_ns)
    far = {number: abs(log(median / max(1.0, known[number]))) for number in known}
    mode = min(far, key=far.__getitem__, default=-1)
    if mode < 0 or far[mode] >= log(gap_ratio):
        mode = signature.mode if signature.mode not in known else max(known) + 1
        known[mode] = float(median)
    if mode == signature.mode:
        return stat
    return stat.model_copy(update={"signature": signature.model_copy(update={"mode": mode})})


def merge(
    profiles: Sequence[WorkloadProfile], *, settings: ProfileSettings | None = None
) -> WorkloadProfile:
    """Merge windows of one server into one, such as six of ten minutes into an hour.

    Launches, times and observed time add up. The median becomes the median of the windows' medians,
    weighted by launches: right when windows agree, and between the windows' when not. The result
    spans from the first start to the last end, has an environment only if all agree on it, and is
    counted only if all are.

    Raises
    ------
    ValueError
        If there is nothing to merge.

    Examples
    --------
    >>> gemm = Signature(kernel="gemm")
    >>> stat = SignatureStat(signature=gemm, launches=2, gpu_time_ns=80, median_ns=40)
    >>> hour = merge([
    ...     WorkloadProfile(window_start_ns=n, window_ns=10, observed_ns=4, stats=(stat,))
    ...     for n in (0, 10, 20)
    ... ])
    >>> hour.window_ns, hour.observed_ns, hour.stats[0].launches, hour.stats[0].median_ns
    (30, 12, 6, 40)
    """
    if not profiles:
        raise ValueError("merge needs at least one profile")
    settings = settings or ProfileSettings()
    groups: dict[Signature, list[SignatureStat]] = {}
    medians: dict[Signature, float] = {}
    for profile in sorted(profiles, key=lambda p: p.window_start_ns):
        for stat in aligned(profile.stats, medians, gap_ratio=settings.mode_gap_ratio):
            groups.setdefault(stat.signature, []).append(stat)
            medians.setdefault(stat.signature, float(stat.median_ns))
    start = min(profile.window_start_ns for profile in profiles)
    environments = {profile.environment for profile in profiles}
    return WorkloadProfile(
        window_start_ns=start,
        window_ns=max(p.window_start_ns + p.window_ns for p in profiles) - start,
        observed_ns=sum(profile.observed_ns for profile in profiles),
        stats=capped((_joined(group) for group in groups.values()), settings.max_signatures),
        environment=environments.pop() if len(environments) == 1 else "",
        counted=all(profile.counted for profile in profiles),
    )


def _joined(group: Sequence[SignatureStat]) -> SignatureStat:
    if len(group) == 1:
        return group[0]
    launches = sum(stat.launches for stat in group)
    seen, median_ns = 0, 0
    for stat in sorted(group, key=lambda s: s.median_ns):
        seen += stat.launches
        median_ns = stat.median_ns
        if 2 * seen >= launches:
            break
    return SignatureStat(
        signature=group[0].signature,
        launches=launches,
        gpu_time_ns=sum(stat.gpu_time_ns for stat in group),
        median_ns=median_ns,
        shape_source=max((stat.shape_source for stat in group), key=_RANK.__getitem__),
        shape_confidence=min(stat.shape_confidence for stat in group),
    )
