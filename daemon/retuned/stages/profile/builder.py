"""Profiles from launches, one by one in bounded memory, and profiles merged into one.

Merging also matches the duration modes of one window with those of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log

from retuned.stages.profile.records import (
    OTHER,
    ProfileSettings,
    Signature,
    SignatureStat,
    WorkloadProfile,
    bucket,
    capped,
)
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.stats import DurationSketch

NAME_MAX = 1024
"""Characters of a kernel name that count; longer names are untrusted input."""
_TENSORS_MAX = 16
_RANK_MAX = 8
_RANK = {source: rank for rank, source in enumerate(ShapeSource)}
_Raw = tuple[object, ...]
_Three = tuple[int, int, int]
_Key = tuple[str, tuple[str, ...], str, tuple[tuple[int, ...], ...], _Three, _Three]
_NO_GEOMETRY: _Three = (0, 0, 0)


class _Cell(DurationSketch):
    """Sums of one signature or geometry."""

    __slots__ = ("confidence", "credit", "key", "rank", "source")

    def __init__(self, key: _Key, credit: int) -> None:
        super().__init__()
        self.key = key
        self.credit = credit
        self.source = ShapeSource.CAPTURE
        self.rank = 0
        self.confidence = 1.0

    def worsen(self, source: ShapeSource, confidence: float) -> None:
        if _RANK[source] > self.rank:
            self.rank, self.source = _RANK[source], source
        self.confidence = min(self.confidence, max(0.0, confidence))

    def signature(self, mode: int) -> Signature:
        kernel, dtypes, layout, dims, blocks, threads = self.key
        return Signature(
            kernel=kernel,
            dtypes=dtypes,
            layout=layout,
            dims=dims,
            blocks=blocks,
            threads=threads,
            mode=mode,
        )


class ProfileBuilder:
    """Folds launches one by one into a profile, in bounded memory.

    Up to twice ``max_signatures`` (the cap) are counted exactly. If full, the (cap + 1)-th largest
    credit is subtracted from all credits, and signatures without credit are folded into
    ``(other)``. So every signature above 1/cap of the GPU time is kept and misses at most 1/cap of
    the GPU time (Misra & Gries 1982, in batches as Anderson et al., IMC 2017).

    Examples
    --------
    >>> builder = ProfileBuilder(ProfileSettings(max_signatures=2))
    >>> for n in range(40):
    ...     builder.add(LaunchRecord(kernel="gemm", start_ns=n, duration_ns=500))
    ...     builder.add(LaunchRecord(kernel=f"rare{n}", start_ns=n, duration_ns=10))
    >>> seen = builder.profile(window_start_ns=0, window_ns=100, observed_ns=100)
    >>> first = seen.stats[0]
    >>> (first.signature.kernel, first.gpu_time_ns), seen.launches, seen.gpu_time_ns
    (('gemm', 20000), 80, 20400)
    """

    def __init__(self, settings: ProfileSettings | None = None) -> None:
        self._settings = settings or ProfileSettings()
        self._cells: dict[_Key, _Cell] = {}
        self._raw: dict[_Raw, _Cell] = {}
        self._other = DurationSketch()
        self._offset = 0

    def add(self, launch: LaunchRecord) -> None:
        """Count one launch.

        Raises
        ------
        ValueError
            If its duration is not positive; stage 1 leaves such rows out.
        """
        if launch.dims:
            raw: _Raw = (launch.kernel, launch.dims, launch.dtypes, launch.layout)
        else:
            raw = (launch.kernel, launch.blocks, launch.threads, launch.dtypes, launch.layout)
        cell = self._raw.get(raw)
        if cell is None:
            cell = self._find(launch, raw)
        if launch.shape_source is not cell.source or launch.shape_confidence < cell.confidence:
            cell.worsen(launch.shape_source, launch.shape_confidence)
        try:
            cell.add(launch.duration_ns)
        except ValueError:
            text = f"{launch.kernel[:80]}: duration_ns is {launch.duration_ns}, must be positive"
            raise ValueError(text) from None

    def _find(self, launch: LaunchRecord, raw: _Raw) -> _Cell:
        """Return the cell of a launch with a new exact shape; make room if necessary."""
        cap = self._settings.max_signatures
        key = _key(launch, self._settings)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= 2 * cap:
                self._purge(cap)
            cell = self._cells[key] = _Cell(key, self._offset)
        if len(self._raw) >= 4 * cap:
            self._raw.clear()
        if len(launch.kernel) <= NAME_MAX and len(launch.dims) <= _TENSORS_MAX:
            self._raw[raw] = cell
        return cell

    def _purge(self, cap: int) -> None:
        credits = sorted((c.credit + c.total for c in self._cells.values()), reverse=True)
        self._offset = max(self._offset, credits[cap])
        for key, cell in list(self._cells.items()):
            if cell.credit + cell.total <= self._offset:
                self._other.merge(self._cells.pop(key))
        self._raw.clear()

    def profile(
        self, *, window_start_ns: int, window_ns: int, observed_ns: int, environment: str = ""
    ) -> WorkloadProfile:
        """Return the profile so far; more launches may be added afterwards."""
        stats = [
            stat
            for cell in self._cells.values()
            if cell.count  # a refused launch may have left an empty cell
            for stat in _stats(cell, self._settings)
        ]
        if self._other.count:
            stats.append(_stat(Signature(kernel=OTHER), self._other))
        return WorkloadProfile(
            window_start_ns=window_start_ns,
            window_ns=window_ns,
            observed_ns=observed_ns,
            stats=capped(stats, self._settings.max_signatures),
            environment=environment,
        )


def _key(launch: LaunchRecord, settings: ProfileSettings) -> _Key:
    known = bool(launch.dims)
    dims = tuple(
        tuple(bucket(length, settings) for length in shape[:_RANK_MAX])
        for shape in launch.dims[:_TENSORS_MAX]
    )
    return (
        launch.kernel[:NAME_MAX],
        launch.dtypes[:_TENSORS_MAX],
        launch.layout,
        dims,
        _NO_GEOMETRY if known else launch.blocks,
        _NO_GEOMETRY if known else launch.threads,
    )


def _stats(cell: _Cell, settings: ProfileSettings) -> list[SignatureStat]:
    """Return one stat, or one per duration mode if dims are unknown."""
    modes: tuple[DurationSketch, ...] = (cell,)
    if not cell.key[3] and cell.count >= 2 * settings.mode_launches:
        modes = cell.clusters(
            gap_ratio=settings.mode_gap_ratio,
            count_min=settings.mode_launches,
            clusters_max=settings.modes_max,
        )
    rest = cell.total - sum(mode.total for mode in modes)
    modes[-1].total += rest  # bins give the parts' sums; the total stays exact
    return [_stat(cell.signature(number), mode, cell) for number, mode in enumerate(modes)]


def _stat(key: Signature, sketch: DurationSketch, cell: _Cell | None = None) -> SignatureStat:
    return SignatureStat(
        signature=key,
        launches=sketch.count,
        gpu_time_ns=max(0, sketch.total),
        median_ns=sketch.quantile(0.5),
        shape_source=cell.source if cell else ShapeSource.NONE,
        shape_confidence=min(1.0, cell.confidence) if cell else 0.0,
    )


def fold(
    launches: Iterable[LaunchRecord],
    *,
    window_start_ns: int,
    window_ns: int,
    observed_ns: int,
    settings: ProfileSettings | None = None,
    environment: str = "",
) -> WorkloadProfile:
    """Fold all launches of one window; memory is bounded by the settings, not by the launches.

    Raises
    ------
    ValueError
        If a duration is not positive.

    Examples
    --------
    >>> launch = LaunchRecord(kernel="rms", start_ns=0, duration_ns=700, dims=((9, 1024),))
    >>> seen = fold([launch] * 3, window_start_ns=0, window_ns=5000, observed_ns=5000)
    >>> seen.stats[0].signature.dims, seen.launches, seen.gpu_time_ns
    (((16, 1024),), 3, 2100)
    """
    folder = ProfileBuilder(settings)
    for launch in launches:
        folder.add(launch)
    return folder.profile(
        window_start_ns=window_start_ns,
        window_ns=window_ns,
        observed_ns=observed_ns,
        environment=environment,
    )


def aligned(
    stats: Iterable[SignatureStat],
    known: Mapping[Signature, float],
    *,
    gap_ratio: float,
) -> list[SignatureStat]:
    """Give every duration mode its known number.

    A window numbers its modes from the shortest; a window without the short ones would otherwise
    number the long one 0. Modes of one geometry are matched by median, nearest on the log scale and
    within `gap_ratio`; an unmatched mode gets the next free number. Signatures with dims have no
    modes and stay unchanged.

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
    weighted by launches: right if windows agree, and between the windows' medians if not. The
    result spans from the first start to the last end. It has an environment only if all agree on
    it, and is counted only if all are.

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
