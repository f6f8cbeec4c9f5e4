"""What the reasons of failed candidates say about what to try next.

Reasons are the verdict's stable codes, as text: the verdict is a later stage. Negative results are
paid for like positive ones, so each kind has one consequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

WRONG = frozenset(
    {
        "wrong-output",
        "nan-mismatch",
        "nondeterministic",
        "out-of-bounds",
        "input-modified",
        "output-not-written",
        "timed-output-wrong",
        "crashed",
        "impossibly-fast",
        "clocks-disagree",
        "row-dependent",
    }
)
"""The candidate computes or claims something that is not so."""
REFUSED = frozenset({"contract-violated", "compile-failed", "binary-audit-failed"})
"""It could not be built."""
STARVED = frozenset({"over-limit", "out-of-memory"})
"""It wants more registers, shared memory or workspace than there is."""
STUCK = frozenset({"timed-out"})
"""It did not end: nobody knows whether it is right, and that says nothing about its speed."""
SLOW = frozenset({"slower", "lost-search"})
"""It is right, and not the fastest."""
UNCLEAR = frozenset({"not-faster-enough", "within-noise", "too-few-samples"})
"""It is right, and about as fast as the incumbent as far as could be seen."""


class Lesson(StrEnum):
    """What follows for the next try."""

    OTHER_STRUCTURE = "other-structure"
    """The algorithm is wrong, does not end or cannot be built here: another one."""
    SMALLER_TILES = "smaller-tiles"
    """The algorithm may be right, and holds too much at a time."""
    OTHER_PARAMETERS = "other-parameters"
    """The algorithm works; other parameters of it, or others beside it."""
    NOTHING_LEFT = "nothing-left"
    """Nothing that was tried comes near: what is left to gain is small."""


def lesson_of(reasons: Mapping[str, int]) -> Lesson:
    """Return what most candidates of one structure, or of one experiment, teach.

    Parameters
    ----------
    reasons
        How many candidates ended with each reason code; codes that are not known teach nothing.

    Examples
    --------
    >>> lesson_of({"over-limit": 5, "slower": 2})
    <Lesson.SMALLER_TILES: 'smaller-tiles'>
    >>> lesson_of({"wrong-output": 3})
    <Lesson.OTHER_STRUCTURE: 'other-structure'>
    >>> lesson_of({"wrong-output": 3, "slower": 1})
    <Lesson.OTHER_PARAMETERS: 'other-parameters'>
    >>> lesson_of({"timed-out": 3})
    <Lesson.OTHER_STRUCTURE: 'other-structure'>
    """
    counts = {
        name: sum(reasons.get(code, 0) for code in codes)
        for name, codes in (
            ("wrong", WRONG | REFUSED | STUCK),
            ("starved", STARVED),
            ("slow", SLOW),
            ("unclear", UNCLEAR),
        )
    }
    worked = counts["slow"] + counts["unclear"]
    if counts["starved"] > max(counts["wrong"], worked):
        return Lesson.SMALLER_TILES
    if counts["wrong"] and not worked:
        return Lesson.OTHER_STRUCTURE
    if counts["unclear"] > counts["slow"] and not counts["wrong"] and not counts["starved"]:
        return Lesson.NOTHING_LEFT
    return Lesson.OTHER_PARAMETERS


def hopeless(outcomes: Mapping[str, Mapping[str, int]], *, least: int = 2) -> tuple[str, ...]:
    """Return structures of which nothing worked, sorted by name.

    Parameters
    ----------
    outcomes
        Per structure, how many candidates ended with each reason code.
    least
        Fewer candidates than this say nothing about a structure.

    Examples
    --------
    >>> hopeless({"tiles": {"wrong-output": 2}, "rows": {"wrong-output": 2, "slower": 1}})
    ('tiles',)
    """
    return tuple(
        structure
        for structure, reasons in sorted(outcomes.items())
        if sum(reasons.values()) >= least and lesson_of(reasons) is Lesson.OTHER_STRUCTURE
    )


def tally(reasons: Sequence[str]) -> dict[str, int]:
    """Count reason codes, the commonest first.

    Examples
    --------
    >>> tally(["slower", "over-limit", "slower"])
    {'slower': 2, 'over-limit': 1}
    """
    counted = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))
