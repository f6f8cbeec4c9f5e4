"""Refinement of hypotheses: what an experiment teaches, and when another attempt does not pay.

The reasons of failed candidates suggest the next attempt. Expected saving and expected cost, both
in seconds, decide whether it pays. A result also changes hypotheses of the same kernel family.
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
"""The candidate computes a wrong result or makes a false claim."""
REFUSED = frozenset({"contract-violated", "compile-failed", "binary-audit-failed"})
"""It could not be compiled."""
STARVED = frozenset({"over-limit", "out-of-memory"})
"""It needs more registers, shared memory or workspace than there is."""
STUCK = frozenset({"timed-out"})
"""It did not end: its correctness and its speed are unknown."""
SLOW = frozenset({"slower", "lost-search"})
"""It is correct, and not the fastest."""
UNCLEAR = frozenset({"not-faster-enough", "within-noise", "too-few-samples"})
"""It is correct, and within the noise as fast as the incumbent."""


class Lesson(StrEnum):
    """What follows for the next attempt."""

    OTHER_STRUCTURE = "other-structure"
    """The algorithm is wrong, does not end or cannot be compiled here: try another one."""
    SMALLER_TILES = "smaller-tiles"
    """The algorithm may be correct, but needs too much memory at a time."""
    OTHER_PARAMETERS = "other-parameters"
    """The algorithm works: try other parameters of it, or further algorithms."""
    NOTHING_LEFT = "nothing-left"
    """No candidate comes near: the remaining gain is small."""


def lesson_of(reasons: Mapping[str, int]) -> Lesson:
    """Return what most candidates of one structure, or of one experiment, teach.

    Parameters
    ----------
    reasons
        How many candidates ended with each reason code; unknown codes teach nothing.

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
    """Return structures without any working candidate, sorted by name.

    Parameters
    ----------
    outcomes
        Per structure, how many candidates ended with each reason code.
    least
        Candidates that a structure needs for a conclusion.

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
    """Why a hypothesis is not tested again; stable codes."""

    ATTEMPTS_SPENT = "attempts-spent"
    """All attempts that the settings allow were made."""
    SAVING_TOO_SMALL = "saving-too-small"
    """The remaining expected saving is below `min_saving`."""
    SEARCHED = "searched"
    """The declared space was searched; the same search would end the same."""
    COSTS_MORE = "costs-more-than-it-saves"
    """Another attempt costs more device time than its expected saving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Expected cost and saving of another attempt."""

    chance: float
    """Probability that the attempt succeeds."""
    saved_s: float
    """Device seconds that are saved within the horizon, if it succeeds."""
    cost_s: float
    """Device seconds of the attempt, weighted against seconds of serving."""

    @property
    def pays(self) -> bool:
        return self.chance * self.saved_s > self.cost_s

    @property
    def sentence(self) -> str:
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
    """Estimate cost and saving of another attempt.

    Formula: ``saved = saving * busy * devices * horizon``. The chance is Laplace's rule of
    succession for a hypothesis that failed ``k`` times, ``1 / (k + 2)``.

    Parameters
    ----------
    saving
        Share of kernel time that success would save.
    failures
        Attempts that failed.
    busy_ratio
        Share of the time in which a device computes.
    cost_s
        Cost of an attempt, seconds of one device; 0 takes the settings' estimate.
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
    """What follows a failed attempt: a refined hypothesis, or the reason to stop."""

    hypothesis: Hypothesis | None
    """The refined hypothesis; None if another attempt does not pay."""
    stop: StopReason | None
    """Why testing ends; None if it continues."""
    outlook: Outlook | None
    """The estimate; None if an earlier check ended it."""
    sentence: str
    """Why, with the numbers."""


def refine(
    hypothesis: Hypothesis,
    attempt: Attempt,
    *,
    structures: Sequence[str] = (),
    shapes: Sequence[Workload] = (),
    settings: HypothesisSettings | None = None,
) -> Hypothesis | None:
    """Refine a hypothesis after a failed attempt; None if another attempt does not pay.

    See `consider`, which also returns why it ends.
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
    """Decide after a failed attempt where to search next, or why to stop.

    Parameters
    ----------
    hypothesis
        The hypothesis that was tested.
    attempt
        Result of the experiment. Structures without a working candidate are dropped, and so are
        shapes at which every finalist lost.
    structures
        Source structures of the definition. Those named in the hypothesis were tried and are
        dropped. If none remain, all are tried once more with other parameters.
    shapes
        Keep only these shapes if some were lost; empty keeps all.
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
        sentence = f"the expected saving left is {saving:.2%} of kernel time"
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

    A guard is a box. A lost shape that lies between others stays: without it, a winner that was
    never measured there would serve it.
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
    """Return the structures that remain: neither tried nor without a working candidate."""
    left = tuple(
        name
        for name in structures
        if name not in hypothesis.structures and name not in attempt.hopeless
    )
    return left if hypothesis.structures or attempt.hopeless else ()


def learn_from(hypothesis: Hypothesis, *, structure: str, gain: float, source: str) -> Hypothesis:
    """Apply a proven win to another kernel of its family, and start with its structure.

    Parameters
    ----------
    hypothesis
        Untested hypothesis.
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
    """Start with the structures that remain after the same attempt failed on a related kernel.

    Parameters
    ----------
    hypothesis
        Untested hypothesis.
    structures
        Source structures that remain.
    source
        Definition on which the attempt failed.
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
        where += f" (no variant of {', '.join(attempt.hopeless)} worked)"
    if attempt.lost:
        where += f" at fewer shapes ({len(attempt.lost)} were lost)"
    return where
