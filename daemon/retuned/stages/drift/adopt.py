"""What the detector takes over: a mix it should know from now on, or one just tuned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from retuned.stages.profile import OTHER, Signature, WorkloadProfile, aligned
from retuned.stats import jensen_shannon


def adopt(
    state: DetectorState,
    profile: WorkloadProfile,
    *,
    tuned: bool,
    settings: DriftSettings | None = None,
) -> DetectorState:
    """Remember a mix: it is no news from now on.

    With `tuned` it also counts as covered, its environment becomes the known one, the latency of
    its signatures is the new baseline (a swap is meant to change it) and nothing is novel any more.
    `detect` itself adopts, not tuned, what it answers with ADOPT; calling this again for the same
    window changes nothing.

    Parameters
    ----------
    state
        As the last `detect` left it.
    profile
        The window or roll-up; without kernel time nothing changes.
    tuned
        True after a completed retune, False to accept a mix as it is.
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
    """Library without the keys that no remembered profile holds; only when keys run out."""
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
