"""Two profiles of which one knows shapes that the other does not: what can be compared of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass

from retuned.stages.profile import OTHER, Signature, SignatureStat, WorkloadProfile

_APART = 0.5
"""A kernel's shapes are on one side only if the shares of its time with dims differ by so much."""
_WORTH = 0.2
"""Less kernel time than this on one side only is no reason to compare otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """Kernels whose shapes only one of two profiles knows."""

    missing_before: bool
    """Whether it is the earlier profile that lacks them; else the later one."""
    kernels: int
    """How many kernels."""
    share: float
    """Share of kernel time that they take, of the profile where they take more."""


def alike(
    before: WorkloadProfile, after: WorkloadProfile
) -> tuple[WorkloadProfile, WorkloadProfile, OneSided | None]:
    """Return two profiles that may be compared, and what had to be left out for it.

    Launches replayed from a captured graph have no dims, the same launches made one by one have:
    their signatures never meet, though the work is the same. Kernels with dims on one side only are
    therefore keyed by their name alone on both sides, where they take a fifth of the kernel time.

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
    """Return the time of each kernel, and how much of it has dims, ns."""
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
    """Fold all signatures of each of these kernels into one that has nothing but its name."""
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
