"""Stage 2, profile: the workload as a GPU-time-weighted histogram over signatures.

Reads stage 1's launches, feeds drift. Pure: windows are given, never read off a clock.

``records``: what a profile is. ``folding``: launches to a profile. ``merging``: profiles to one,
and which duration mode of one window is which of another. ``counting``: sampled launches to counted
ones.
"""

from retuned.stages.profile.builder import ProfileBuilder, aligned, fold, merge
from retuned.stages.profile.counts import Counts, key_of, recount, together
from retuned.stages.profile.records import (
    OTHER,
    ProfileSettings,
    Signature,
    SignatureStat,
    WorkloadProfile,
    bucket,
    bucket_low,
    bucket_middle,
)

__all__ = [
    "OTHER",
    "Counts",
    "ProfileBuilder",
    "ProfileSettings",
    "Signature",
    "SignatureStat",
    "WorkloadProfile",
    "aligned",
    "bucket",
    "bucket_low",
    "bucket_middle",
    "fold",
    "key_of",
    "merge",
    "recount",
    "together",
]
