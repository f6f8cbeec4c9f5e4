"""Comparable profiles and adopted ones: how `compare` and the detector take over a mix.

If one of two profiles lacks shapes that the other has, `alike` makes them comparable. `adopt` adds
a mix to the library of the detector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import log

import numpy as np

from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import (
    DetectorState,
    Latency,
    Library,
    LibraryProfile,
    dense,
    sparse,
    tally,
)
from retuned.stages.profile import OTHER, Signature, SignatureStat, WorkloadProfile, aligned
from retuned.stats import jensen_shannon

_APART = 0.5
"""A kernel's shapes count as one-sided if the shares of its time with dims differ by more."""
_WORTH = 0.2
"""A smaller share of one-sided kernel time does not change the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """Kernels whose shapes only one of two profiles has."""

    missing_before: bool
    """Whether the earlier profile lacks them; else the later one does."""
    kernels: int
    share: float
    """Their share of kernel time, in the profile where it is larger."""


def alike(
    before: WorkloadProfile, after: WorkloadProfile
) -> tuple[WorkloadProfile, WorkloadProfile, OneSided | None]:
    """Return two comparable profiles, and what was left out to make them comparable.

    Launches replayed from a captured graph have no dims; the same launches made one by one have.
    Their signatures never match, though the work is the same. If kernels with dims on one side only
    take a fifth of the kernel time, both sides key them by name alone.

    Examples
    --------
    >>> def profile(**key):
    ...     stat = SignatureStat(signature=Signature(kernel="gemm", **key), launches=4,
    ...                          gpu_time_ns=80, median_ns=20)
    ...     return WorkloadProfile(window_start_ns=0, window_ns=9, observed_ns=9, stats=(stat,))
    >>> old, new, said = alike(profile(dims=((8, 64),)), profile(blocks=(8, 1, 1)))
    >>> old == new, said.missing_before, said.share
    (True, False, 1.0)
    >>> alike(old, old)[2] is None
    True
    """
    old, new = _times(before.stats), _times(after.stats)
    apart = {
        name: _known(new[name]) - _known(old[name])
        for name in old.keys() & new.keys() - {OTHER}
        if abs(_known(new[name]) - _known(old[name])) > _APART
    }
    # more dims afterwards means that they are missing before
    lacking = {
        side: {n for n, more in apart.items() if (more > 0) is side} for side in (True, False)
    }
    shares = {side: max(_share(old, names), _share(new, names)) for side, names in lacking.items()}
    if sum(shares.values()) < _WORTH:
        return before, after, None
    said = OneSided(
        missing_before=shares[True] > shares[False],
        kernels=len(apart),
        share=max(_share(old, apart.keys()), _share(new, apart.keys())),
    )
    return _by_name(before, apart.keys()), _by_name(after, apart.keys()), said


def _times(stats: Iterable[SignatureStat]) -> dict[str, tuple[int, int]]:
    """Return the time of each kernel, and the part of it with dims, ns."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for stat in stats:
        whole, known = found[stat.signature.kernel]
        with_dims = stat.gpu_time_ns if stat.signature.dims else 0
        found[stat.signature.kernel] = (whole + stat.gpu_time_ns, known + with_dims)
    return dict(found)


def _known(times: tuple[int, int]) -> float:
    whole, known = times
    return known / whole if whole else 0.0


def _share(times: dict[str, tuple[int, int]], names: Set[str]) -> float:
    total = sum(whole for whole, _ in times.values())
    return sum(times[name][0] for name in names) / total if total else 0.0


def _by_name(profile: WorkloadProfile, names: Set[str]) -> WorkloadProfile:
    """Fold all signatures of each of these kernels into one that has only the name."""
    kept = [stat for stat in profile.stats if stat.signature.kernel not in names]
    groups: dict[str, list[SignatureStat]] = defaultdict(list)
    for stat in profile.stats:
        if stat.signature.kernel in names:
            groups[stat.signature.kernel].append(stat)
    folded = [
        SignatureStat(
            signature=Signature(kernel=name),
            launches=sum(stat.launches for stat in group),
            gpu_time_ns=sum(stat.gpu_time_ns for stat in group),
            median_ns=max(group, key=lambda stat: stat.launches).median_ns,
        )
        for name, group in groups.items()
    ]
    ranked = sorted([*kept, *folded], key=lambda stat: -stat.gpu_time_ns)
    return profile.model_copy(update={"stats": tuple(ranked)})


def adopt(
    state: DetectorState,
    profile: WorkloadProfile,
    *,
    tuned: bool,
    settings: DriftSettings | None = None,
) -> DetectorState:
    """Add a mix to the known ones, so that it no longer counts as drift.

    With `tuned` it also counts as covered, its environment becomes the known one, the latency of
    its signatures is the new baseline (a swap is meant to change it) and nothing is novel any more.
    `detect` itself adopts, not tuned, a mix that it reports with ADOPT. A repeated call for the
    same window changes nothing.

    Parameters
    ----------
    state
        From the last `detect`.
    profile
        The window or roll-up; without kernel time nothing changes.
    tuned
        True after a completed retune, False to accept a mix without one.
    settings
        As given to `detect`.

    Examples
    --------
    >>> from retuned.stages.drift import DEMO_SETTINGS, detect, learn
    >>> from retuned.stages.profile import Signature, SignatureStat
    >>> def window(start, kernel):
    ...     stat = SignatureStat(
    ...         signature=Signature(kernel=kernel), launches=900, gpu_time_ns=9000, median_ns=10)
    ...     return WorkloadProfile(window_start_ns=start, window_ns=5, observed_ns=5, stats=(stat,))
    >>> state = learn([window(0, "chat"), window(5, "chat")], settings=DEMO_SETTINGS)
    >>> state = adopt(state, window(10, "code"), tuned=True, settings=DEMO_SETTINGS)
    >>> detect(window(15, "code"), state=state, settings=DEMO_SETTINGS)[0].detected
    False
    """
    settings = settings or DriftSettings()
    if profile.gpu_time_ns <= 0:
        return state
    library = _remembered(state.library, profile, tuned=tuned, settings=settings)
    update: dict[str, object] = {
        "library": library,
        "cusums": (),
        "scores": (),
        "new_recent": (),
    }
    if tuned:
        stats = aligned(profile.stats, library.modes, gap_ratio=settings.mode_gap_ratio)
        medians = {stat.signature: stat.median_ns for stat in stats}
        update |= {
            "novel": False,
            "uncovered": (),
            "pending": (),
            "environment": profile.environment or state.environment,
            "latencies": _rebased(state.latencies, medians),
        }
    return state.model_copy(update=update)


def _rebased(
    latencies: Sequence[Latency], medians_ns: Mapping[Signature, int]
) -> tuple[Latency, ...]:
    return tuple(
        watch.model_copy(
            update={"slower": 0.0, "faster": 0.0}
            | (
                {"log_ns": log(medians_ns[watch.signature])}
                if medians_ns.get(watch.signature, 0) > 0
                else {}
            )
        )
        for watch in latencies
    )


def _remembered(
    library: Library, profile: WorkloadProfile, *, tuned: bool, settings: DriftSettings
) -> Library:
    """Library with the profile's keys, the profile itself, and within its bounds."""
    if len(library.keys) + len(profile.stats) > settings.keys_max:
        library = _compacted(library)
    stats = aligned(profile.stats, library.modes, gap_ratio=settings.mode_gap_ratio)
    fresh = [
        stat
        for stat in stats
        if stat.signature not in library.index and stat.signature.kernel != OTHER
    ][: max(0, settings.keys_max - len(library.keys))]
    wider = Library(
        keys=(*library.keys, *(stat.signature for stat in fresh)),
        medians_ns=(*library.medians_ns, *(float(stat.median_ns) for stat in fresh)),
        tuned_share=(*library.tuned_share, *(0.0 for _ in fresh)),
        profiles=library.profiles,
    )
    shares, weights = tally(stats, wider, power=settings.time_power)
    envelope = np.maximum(wider.envelope, shares)[:-1] if tuned else wider.envelope[:-1]
    if shares[:-1].sum() <= 0:
        return wider
    entry = sparse(shares, weights, tuned=tuned)
    profiles = library.profiles if entry in library.profiles else (*library.profiles, entry)
    return Library(
        keys=wider.keys,
        medians_ns=wider.medians_ns,
        tuned_share=tuple(envelope.tolist()),
        profiles=_bounded(profiles, settings.library_max, keys=len(wider.keys)),
    )


def _compacted(library: Library) -> Library:
    """Library without the keys that no remembered profile contains; only if keys run out."""
    used = sorted({place for profile in library.profiles for place in profile.indexes})
    moved = {old: new for new, old in enumerate(used)}
    return Library(
        keys=tuple(library.keys[place] for place in used),
        medians_ns=tuple(library.medians_ns[place] for place in used),
        tuned_share=tuple(library.tuned_share[place] for place in used),
        profiles=tuple(
            profile.model_copy(update={"indexes": tuple(moved[i] for i in profile.indexes)})
            for profile in library.profiles
        ),
    )


def _bounded(
    profiles: Sequence[LibraryProfile], limit: int, *, keys: int
) -> tuple[LibraryProfile, ...]:
    """Forget the most redundant profile, never the newest, until the limit holds."""
    kept = list(profiles)
    while len(kept) > limit:
        _, rows = dense(kept, keys)
        near = [
            float(np.delete(jensen_shannon(row, rows), place).min())
            for place, row in enumerate(rows[:-1])
        ]
        kept.pop(int(np.argmin(near)))
    return tuple(kept)
