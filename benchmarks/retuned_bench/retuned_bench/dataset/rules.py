"""What an attempt is worth, for reinforcement learning. Pure.

One number per attempt, ordered as the lab sees it: what tries to cheat is worst, then what does not
run, what is wrong, what is slower, what is not surely faster (0), what is surely faster. Only the
lower confidence bound of a re-measured winner is ever rewarded: a lucky search earns nothing.
"""

from __future__ import annotations

import math

from retuned.stages.verdict import Reason, Status, Verdict

DISHONEST = -1.0
BROKEN = -0.8
WRONG = -0.6
SLOWEST = -0.4
"""A correct kernel is never worth less, however slow."""
BEST = 3.0
"""Eight times as fast and more."""

_DISHONEST = frozenset(
    {
        Reason.BINARY_AUDIT,
        Reason.INPUT_MODIFIED,
        Reason.TIMED_OUTPUT_WRONG,
        Reason.IMPOSSIBLY_FAST,
    }
)
_BROKEN = frozenset(
    {
        Reason.CONTRACT,
        Reason.COMPILE_FAILED,
        Reason.CRASHED,
        Reason.TIMED_OUT,
        Reason.OUT_OF_MEMORY,
        Reason.OVER_LIMIT,
        Reason.OUT_OF_BOUNDS,
    }
)
_WRONG = frozenset(
    {
        Reason.OUTPUT_NOT_WRITTEN,
        Reason.NONDETERMINISTIC,
        Reason.WRONG_OUTPUT,
        Reason.NAN_MISMATCH,
        Reason.ROW_DEPENDENT,
    }
)
_UNKNOWN = frozenset({Reason.HARNESS_FAILED, Reason.TOO_FEW_SAMPLES, Reason.CLOCKS_DISAGREE})

REWARD_DEFINITION = {
    "cheats": f"{DISHONEST}: " + ", ".join(sorted(_DISHONEST)),
    "does not run": f"{BROKEN}: " + ", ".join(sorted(_BROKEN)),
    "computes something else": f"{WRONG}: " + ", ".join(sorted(_WRONG)),
    "correct, not promoted": f"log2(speedup.point), at least {SLOWEST} and at most 0; 0 untimed",
    "promoted": f"log2(speedup.lower), at most {BEST}",
    "null": "evidence that is not verified, and " + ", ".join(sorted(_UNKNOWN)),
}
"""The definition, for people; it is written into every manifest."""


def reward_of(verdict: Verdict) -> float | None:
    """Return what an attempt is worth; None where the verdict says nothing about the candidate.

    Examples
    --------
    >>> nobody = {"candidate": "sha256:" + "a" * 64, "incumbent": "sha256:" + "b" * 64}
    >>> reward_of(Verdict(status="reject", reason="crashed", gate="G3", **nobody))
    -0.8
    >>> reward_of(Verdict(status="ambiguous", reason="harness-failed", gate="G3", **nobody))
    """
    if verdict.reason in _UNKNOWN:
        return None
    for reasons, worth in ((_DISHONEST, DISHONEST), (_BROKEN, BROKEN), (_WRONG, WRONG)):
        if verdict.reason in reasons:
            return worth
    speedup = verdict.speedup
    if speedup is None:
        return 0.0
    if verdict.status is Status.PROMOTE:
        return round(min(BEST, math.log2(speedup.lower)), 6)
    # the sum turns a negative zero into a plain one
    return round(max(SLOWEST, min(0.0, math.log2(speedup.point))), 6) + 0.0
