"""The evaluator: what a finding of the lab means for the search. It does not ask a model.

The model never judges its own work: what is right and what is fast the lab measures, and this turns
the verdict into a score and a few sentences that the other roles read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retuned.lab.generators.evolve.redaction import line
from retuned.lab.generators.spaces import merit
from retuned.ports import Finding
from retuned.stages.verdict import Reason, ShapeResult

_ADVICE = {
    Reason.CONTRACT: "The static contract refused the text before it was compiled.",
    Reason.COMPILE_FAILED: "The compiler refused it.",
    Reason.BINARY_AUDIT: "The compiled code holds what a kernel has no use for.",
    Reason.CRASHED: "It died while it ran.",
    Reason.TIMED_OUT: "It did not end in time: a loop that does not advance, or far too much work.",
    Reason.OUT_OF_MEMORY: "It wants more memory than there is.",
    Reason.OVER_LIMIT: "It wants more of the device than one program may have; smaller tiles.",
    Reason.OUT_OF_BOUNDS: "It touched memory outside of its tensors; check tails and masks.",
    Reason.INPUT_MODIFIED: "It wrote to an input.",
    Reason.OUTPUT_NOT_WRITTEN: "Some outputs were never written.",
    Reason.NONDETERMINISTIC: "The same inputs gave other bits; something is read uninitialised.",
    Reason.WRONG_OUTPUT: "The outputs are wrong against float64.",
    Reason.NAN_MISMATCH: "NaN and infinity do not come out where the incumbent has them.",
}
"""What can be repaired, in our own words."""


class Outcome(StrEnum):
    """What the search makes of a finding."""

    TIMED = "timed"
    """Right and measured."""
    BROKEN = "broken"
    """Refused for a reason that another attempt may repair."""
    HOPELESS = "hopeless"
    """Neither: the lab failed, time ran out, or it looks like a trick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A finding, as the search sees it."""

    outcome: Outcome
    """What kind."""
    merit: float | None
    """Incumbent's time over its own, weighted by the profile; None where it was not timed."""
    said: str
    """Our own sentence."""
    detail: str
    """The gate's sentence; may hold a compiler's words, so it is data."""


def assess(finding: Finding) -> Assessment:
    """Return what a finding means for the search."""
    verdict = finding.verdict
    ratio = merit(finding)
    detail = line(verdict.detail, 400)
    if verdict.reason in _ADVICE:
        said = f"Refused at gate {verdict.gate} ({verdict.reason}). {_ADVICE[verdict.reason]}"
        return Assessment(outcome=Outcome.BROKEN, merit=None, said=said, detail=detail)
    if ratio is not None and ratio > 0 and verdict.reason not in _TRICKS:
        word = "faster" if ratio > 1 else "slower"
        said = f"Right, and {ratio:.3f}x the incumbent's speed ({word}); verdict {verdict.reason}."
        return Assessment(outcome=Outcome.TIMED, merit=ratio, said=said, detail=detail)
    said = f"Ended at gate {verdict.gate} ({verdict.reason}) without a time."
    return Assessment(outcome=Outcome.HOPELESS, merit=None, said=said, detail=detail)


def shape_lines(shapes: tuple[ShapeResult, ...]) -> list[str]:
    """Return times per shape, for a prompt."""
    return [
        f"{', '.join(f'{axis}={length}' for axis, length in shape.axes.items())}: "
        f"{shape.candidate_us:.3g} us, incumbent {shape.incumbent_us:.3g} us"
        for shape in shapes
    ]


_TRICKS = frozenset(
    {
        Reason.IMPOSSIBLY_FAST,
        Reason.CLOCKS_DISAGREE,
        Reason.TIMED_OUTPUT_WRONG,
        Reason.HARNESS_FAILED,
    }
)
"""A time that came with one of these says nothing."""
