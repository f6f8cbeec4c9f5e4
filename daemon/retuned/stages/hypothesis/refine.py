"""What an experiment teaches: about its own belief, and about others of the family.

What the reasons of failed candidates say about what to try next.

When trying again no longer pays: expected saving against expected cost, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retuned.contract import Workload
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, named

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


class StopReason(StrEnum):
    """Why a belief is not tested again; stable codes."""

    ATTEMPTS_SPENT = "attempts-spent"
    """It was tried as often as the settings allow."""
    SAVING_TOO_SMALL = "saving-too-small"
    """What is still believed is below the least share that a person wants to hear of."""
    COSTS_MORE = "costs-more-than-it-saves"
    """Another try costs more device time than it can be expected to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What another try is expected to cost and to save."""

    chance: float
    """That the try succeeds."""
    saved_s: float
    """Device seconds that are saved within the horizon, if it succeeds."""
    cost_s: float
    """Device seconds that the try costs, weighed against seconds of serving."""

    @property
    def pays(self) -> bool:
        """Whether the expected saving is above the cost."""
        return self.chance * self.saved_s > self.cost_s

    @property
    def sentence(self) -> str:
        """The numbers, for a person."""
        return (
            f"another try costs {self.cost_s:.0f} s of device time and, at a chance of "
            f"{self.chance:.0%}, is expected to save {self.chance * self.saved_s:.0f} s"
        )


def outlook(
    saving: float,
    *,
    failures: int,
    busy_ratio: float,
    cost_s: float,
    settings: HypothesisSettings,
) -> Outlook:
    """Weigh another try.

    Formula: ``saved = saving * busy * devices * horizon``. The chance is Laplace's rule of
    succession for a belief that failed ``k`` times, ``1 / (k + 2)``.

    Parameters
    ----------
    saving
        Share of kernel time that success would save.
    failures
        Attempts that failed.
    busy_ratio
        Share of the time that a device computes at all.
    cost_s
        What a try costs, seconds of one device; 0 takes the settings' guess.
    settings
        Horizon, devices and weights.

    Examples
    --------
    >>> settings = HypothesisSettings(horizon_s=3600.0)
    >>> outlook(0.1, failures=1, busy_ratio=1.0, cost_s=60.0, settings=settings).pays
    True
    >>> outlook(0.01, failures=1, busy_ratio=1.0, cost_s=60.0, settings=settings).pays
    False
    """
    return Outlook(
        chance=1.0 / (failures + 2),
        saved_s=saving * busy_ratio * settings.devices * settings.horizon_s,
        cost_s=settings.experiment_weight * (cost_s or settings.experiment_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The answer to a failed attempt: another belief, or the reason why there is none."""

    hypothesis: Hypothesis | None
    """What is believed now; None where trying again does not pay."""
    stop: StopReason | None
    """Why it ends; None where it goes on."""
    outlook: Outlook | None
    """The weighing; None where it did not come so far."""
    sentence: str
    """Why, with the numbers, for a person."""


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
