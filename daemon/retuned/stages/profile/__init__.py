"""Stage 2, profile: the workload as a GPU-time-weighted histogram over signatures.

It consumes stage 1's launches and feeds drift. Pure: windows are given, never read from a clock.

``builder`` folds launches into a profile and merges profiles. ``counts`` replaces sampled launches
by counted ones. ``records`` defines a profile.
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
