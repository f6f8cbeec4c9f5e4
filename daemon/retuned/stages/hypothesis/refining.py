"""What an experiment teaches: about its own belief, and about others of the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned.contract import Workload
from retuned.stages.hypothesis.lessons import Lesson, lesson_of
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, named
from retuned.stages.hypothesis.stopping import Refinement, StopReason, outlook


def refine(
    hypothesis: Hypothesis,
    attempt: Attempt,
    *,
    structures: Sequence[str] = (),
    shapes: Sequence[Workload] = (),
    settings: HypothesisSettings | None = None,
) -> Hypothesis | None:
    """Believe less and look elsewhere after a failed attempt; None where trying again does not pay.

    See `consider`, which also says why it ends.
    """
    return consider(
        hypothesis, attempt, structures=structures, shapes=shapes, settings=settings
    ).hypothesis


def consider(
    hypothesis: Hypothesis,
    attempt: Attempt,
    *,
    structures: Sequence[str] = (),
    shapes: Sequence[Workload] = (),
    settings: HypothesisSettings | None = None,
) -> Refinement:
    """Answer a failed attempt: where to look next, or why to stop.

    Parameters
    ----------
    hypothesis
        What was believed.
    attempt
        What the experiment taught: structures of which nothing worked are dropped, and so are
        shapes at which every finalist lost.
    structures
        Source structures of the definition; those named in the hypothesis are dropped, because they
        were tried. Empty, or nothing left: all are tried again with other parameters, once.
    shapes
        Keep only these shapes, where some were found hopeless; empty keeps all.
    settings
        When to stop.
    """
    settings = settings or HypothesisSettings()
    attempts = (*hypothesis.attempts, attempt)
    if len(attempts) >= settings.max_attempts:
        sentence = f"{len(attempts)} attempts were made, and {settings.max_attempts} are allowed"
        return _stop(StopReason.ATTEMPTS_SPENT, sentence)
    kept = _kept(hypothesis, attempt, shapes)
    share = hypothesis.share * (1.0 - (attempt.lost_share if kept else 0.0))
    gain = hypothesis.expected_gain_ratio**settings.discount
    saving = share * (1.0 - 1.0 / gain)
    if saving < settings.min_saving:
        sentence = f"what is left to save is {saving:.2%} of kernel time"
        return _stop(StopReason.SAVING_TOO_SMALL, sentence)
    weighed = outlook(
        saving,
        failures=len(attempts),
        busy_ratio=hypothesis.busy_ratio,
        cost_s=attempt.seconds,
        settings=settings,
    )
    if not weighed.pays:
        return Refinement(
            hypothesis=None,
            stop=StopReason.COSTS_MORE,
            outlook=weighed,
            sentence=weighed.sentence,
        )
    refined = _refined(
        hypothesis,
        attempts,
        workloads=kept or tuple(shapes) or hypothesis.workloads,
        structures=_left(hypothesis, attempt, structures),
        share=share,
        gain=gain,
    )
    return Refinement(
        hypothesis=refined,
        stop=None,
        outlook=weighed,
        sentence=f"{refined.because}; {weighed.sentence}",
    )


def _refined(
    hypothesis: Hypothesis,
    attempts: tuple[Attempt, ...],
    *,
    workloads: tuple[Workload, ...],
    structures: tuple[str, ...],
    share: float,
    gain: float,
) -> Hypothesis:
    saving = share * (1.0 - 1.0 / gain)
    last = attempts[-1]
    return named(
        {
            "definition": hypothesis.definition,
            "workloads": workloads,
            "share": share,
            "expected_gain_ratio": gain,
            "expected_saving": saving,
            "because": f"attempt {len(attempts)} ended with {last.reason}; "
            f"{_next_try(structures, last)} may still save {saving:.1%} of kernel time",
            "structures": structures,
            "attempts": attempts,
            "world": hypothesis.world,
            "busy_ratio": hypothesis.busy_ratio,
        }
    )


def _stop(reason: StopReason, sentence: str) -> Refinement:
    return Refinement(hypothesis=None, stop=reason, outlook=None, sentence=sentence)


def _kept(
    hypothesis: Hypothesis, attempt: Attempt, shapes: Sequence[Workload]
) -> tuple[Workload, ...]:
    """Return the shapes without those at which every finalist lost; empty if none is left out.

    A guard is a box. A lost shape that lies between others stays: left out of the experiment, it
    would be served by a winner that nobody measured there.
    """
    lost = [workload.axes for workload in attempt.lost]
    known = tuple(shapes or hypothesis.workloads)
    won = [w.axes for w in known if w.axes not in lost]
    kept = tuple(w for w in known if w.axes not in lost or _between(w.axes, won))
    return kept if won and len(kept) < len(known) else ()


def _between(axes: Mapping[str, int], others: Sequence[Mapping[str, int]]) -> bool:
    """Whether a shape lies within the box around others.

    Examples
    --------
    >>> [_between({"M": m}, [{"M": 4}, {"M": 64}]) for m in (1, 16)]
    [False, True]
    """
    return bool(others) and all(
        min(other[axis] for other in others) <= length <= max(other[axis] for other in others)
        for axis, length in axes.items()
    )


def _left(hypothesis: Hypothesis, attempt: Attempt, structures: Sequence[str]) -> tuple[str, ...]:
    """Return the structures to look at: not those tried, nor those of which nothing worked."""
    left = tuple(
        name
        for name in structures
        if name not in hypothesis.structures and name not in attempt.hopeless
    )
    return left if hypothesis.structures or attempt.hopeless else ()


def learn_from(hypothesis: Hypothesis, *, structure: str, gain: float, source: str) -> Hypothesis:
    """Believe of a kernel what was proven of another of its family, and start there.

    Parameters
    ----------
    hypothesis
        Untested belief.
    structure
        Source structure that won.
    gain
        Lower bound of the winner's speedup, above 1.
    source
        Definition on which it won.
    """
    saving = hypothesis.share * (1.0 - 1.0 / max(gain, 1.0))
    return named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "expected_gain_ratio": max(gain, 1.0),
            "expected_saving": saving,
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of kernel time; "
            f"{structure} won {gain:.2f}x on {source} and may save {saving:.1%} here",
            "structures": (structure,),
        }
    )


def look_elsewhere(hypothesis: Hypothesis, *, structures: Sequence[str], source: str) -> Hypothesis:
    """Start a belief where another kernel of its family, on which the same try failed, looks next.

    Parameters
    ----------
    hypothesis
        Untested belief.
    structures
        Source structures that are left.
    source
        Definition on which the try failed.
    """
    return named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of kernel time; "
            f"{', '.join(hypothesis.structures)} brought nothing on {source}, "
            f"{', '.join(structures)} may still save {hypothesis.expected_saving:.1%}",
            "structures": tuple(structures),
        }
    )


def _next_try(structures: Sequence[str], attempt: Attempt) -> str:
    where = f"structures {', '.join(structures)}" if structures else "other parameters"
    if lesson_of(attempt.reasons) is Lesson.SMALLER_TILES:
        where += " with smaller tiles"
    if attempt.hopeless:
        where += f" (nothing of {', '.join(attempt.hopeless)} worked)"
    if attempt.lost:
        where += f" at fewer shapes ({len(attempt.lost)} were lost)"
    return where
