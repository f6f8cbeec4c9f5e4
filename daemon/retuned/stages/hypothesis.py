"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from retuned.contract import Name, Record, Workload, digest_of
from retuned.stages.drift import DriftAction, DriftReport


class Attempt(Record):
    """What an earlier experiment on the same hypothesis taught."""

    experiment: str
    """Its id."""
    reason: str
    """Reason code of its verdict."""
    detail: str = ""
    """One sentence, for example the best candidate and what it lost on."""


class Hypothesis(Record):
    """A kernel that may be made faster for the present workload."""

    id: str
    """Digest of what was believed; the same belief is never paid twice."""
    definition: Name
    """Definition of the kernel."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Shapes to tune for, weighted by the present profile."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take now."""
    expected_gain_ratio: float = Field(gt=0.0)
    """Believed time of the incumbent over time of the best variant."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of total GPU time that would be saved: share * (1 - 1 / gain)."""
    because: str
    """Why, one sentence for a person."""
    structures: tuple[Name, ...] = ()
    """Source structures to try first; empty means all."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier tries, oldest first; a refined hypothesis carries them."""
    world: str = ""
    """Digest of what it was believed of: the variant in production and the environment. In another
    world it is another belief, and may be tested again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCost:
    """One shape of a known definition in the present window."""

    workload: Workload
    """Lengths and launches per second."""
    gpu_time_ns: int
    """In the window."""
    median_ns: int
    """Of one launch of the incumbent."""
    floor_ns: int = 0
    """Roofline: no kernel can be faster; 0 where unknown."""


class HypothesisSettings(Record):
    """How gains are guessed before they are measured, and when it is not worth trying."""

    min_saving: float = Field(default=0.005, ge=0.0, le=1.0)
    """Least share of total GPU time that pays for an experiment."""
    unknown_gain: float = Field(default=1.15, ge=1.0)
    """Gain believed without roofline or prior: launch parameters alone leave 0 to 14 %."""
    reach: float = Field(default=0.4, gt=0.0, le=1.0)
    """Part of the way to the roofline, in logarithms, that a search is believed to go."""
    launch_ns: int = Field(default=5_000, ge=0)
    """Part of every launch that belongs to framework and driver: no other source saves it, and
    without it a kernel of a few microseconds looks far from its roofline."""
    max_gain: float = Field(default=4.0, gt=1.0)
    """Gains above this are not believed before they are measured."""
    max_shapes: int = Field(default=4, ge=1)
    """Most shapes of one hypothesis; those with most GPU time."""
    max_attempts: int = Field(default=3, ge=1)
    """Most experiments on one hypothesis and its refinements."""
    discount: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What a failed attempt leaves of the believed gain, in logarithms."""


def hypothesize(
    shapes: Mapping[str, Sequence[ShapeCost]],
    *,
    report: DriftReport,
    total_gpu_time_ns: int,
    priors: Mapping[str, float] | None = None,
    known: Collection[str] = (),
    start: Mapping[str, tuple[str, ...]] | None = None,
    worlds: Mapping[str, str] | None = None,
    settings: HypothesisSettings | None = None,
) -> tuple[Hypothesis, ...]:
    """Turn a drift report that asks for it into beliefs worth an experiment, most saving first.

    Parameters
    ----------
    shapes
        Per definition, what the present window spent on each shape.
    report
        The drift report; only ``retune`` leads to hypotheses.
    total_gpu_time_ns
        Of the whole window, so that shares are of everything.
    priors
        Gain that earlier experiments found per definition; better than a roofline.
    known
        Ids of hypotheses that exist: the same belief is never paid twice.
    start
        Structures to try first per definition, such as the audited one in production, where other
        parameters are the smallest change; all of them where a definition is not named.
    worlds
        Per definition, the digest of the variant in production and of the environment.
    settings
        How gains are guessed.

    Raises
    ------
    ValueError
        If the shapes take more time than the window has.
    """
    settings = settings or HypothesisSettings()
    if report.action is not DriftAction.RETUNE or total_gpu_time_ns <= 0:
        return ()
    found = []
    for definition in sorted(name for name, costs in shapes.items() if costs):
        costs = sorted(shapes[definition], key=lambda cost: -cost.gpu_time_ns)
        costs = costs[: settings.max_shapes]
        prior = (priors or {}).get(definition)
        belief = _believe(
            costs,
            report,
            total_gpu_time_ns,
            prior,
            structures=(start or {}).get(definition, ()),
            world=(worlds or {}).get(definition, ""),
            settings=settings,
        )
        if belief is not None and belief.id not in known:
            found.append(belief)
    return tuple(sorted(found, key=lambda each: (-each.expected_saving, each.definition)))


def refine(
    hypothesis: Hypothesis,
    attempt: Attempt,
    *,
    structures: Sequence[str] = (),
    shapes: Sequence[Workload] = (),
    settings: HypothesisSettings | None = None,
) -> Hypothesis | None:
    """Believe less and look elsewhere after a failed attempt; None where trying again does not pay.

    Parameters
    ----------
    hypothesis
        What was believed.
    attempt
        What the experiment taught.
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
        return None
    gain = hypothesis.expected_gain_ratio**settings.discount
    saving = hypothesis.share * (1.0 - 1.0 / gain)
    if saving < settings.min_saving:
        return None
    left = tuple(name for name in structures if name not in hypothesis.structures)
    body = {
        "definition": hypothesis.definition,
        "workloads": tuple(shapes) or hypothesis.workloads,
        "share": hypothesis.share,
        "expected_gain_ratio": gain,
        "expected_saving": saving,
        "because": f"attempt {len(attempts)} ended with {attempt.reason}; {_next_try(left)} "
        f"may still save {saving:.1%} of GPU time",
        "structures": left if hypothesis.structures else (),
        "attempts": attempts,
        "world": hypothesis.world,
    }
    return _named(body)


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
    return _named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "expected_gain_ratio": max(gain, 1.0),
            "expected_saving": saving,
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of GPU time; "
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
    return _named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of GPU time; "
            f"{', '.join(hypothesis.structures)} brought nothing on {source}, "
            f"{', '.join(structures)} may still save {hypothesis.expected_saving:.1%}",
            "structures": tuple(structures),
        }
    )


def _believe(
    costs: Sequence[ShapeCost],
    report: DriftReport,
    total_ns: int,
    prior: float | None,
    *,
    structures: tuple[str, ...],
    world: str,
    settings: HypothesisSettings,
) -> Hypothesis | None:
    definition = costs[0].workload.definition
    spent = sum(cost.gpu_time_ns for cost in costs)
    if spent > total_ns:
        raise ValueError(f"{definition}: {spent} ns in shapes, but {total_ns} ns in the window")
    if spent <= 0:
        return None
    left = sum(cost.gpu_time_ns / _gain(cost, prior, settings) for cost in costs)
    gain, share = spent / left, spent / total_ns
    saving = share * (1.0 - 1.0 / gain)
    if gain <= 1.0 or saving < settings.min_saving:
        return None
    where = ", ".join(_lengths(cost.workload) for cost in costs)
    body = {
        "definition": definition,
        "workloads": tuple(cost.workload for cost in costs),
        "share": share,
        "expected_gain_ratio": gain,
        "expected_saving": saving,
        "because": f"{definition} takes {share:.1%} of GPU time at {where}; "
        f"{_source(costs, prior)} let expect {gain:.2f}x, {saving:.1%} of GPU time "
        f"({report.sentence})",
        "structures": structures,
        "world": world,
    }
    return _named(body)


def _gain(cost: ShapeCost, prior: float | None, settings: HypothesisSettings) -> float:
    if prior is not None:
        return min(max(prior, 1.0), settings.max_gain)
    if cost.floor_ns <= 0:
        return settings.unknown_gain
    room = max(cost.median_ns / (cost.floor_ns + settings.launch_ns), 1.0)
    return float(min(room**settings.reach, settings.max_gain))


def _source(costs: Sequence[ShapeCost], prior: float | None) -> str:
    if prior is not None:
        return "earlier experiments"
    return "rooflines" if any(cost.floor_ns > 0 for cost in costs) else "untuned shapes"


def _next_try(structures: Sequence[str]) -> str:
    return f"structures {', '.join(structures)}" if structures else "other parameters"


def _lengths(workload: Workload) -> str:
    return "x".join(f"{name}={length}" for name, length in workload.axes.items()) or "its one shape"


def _named(body: Mapping[str, object]) -> Hypothesis:
    """Give a belief its id: what it is about and what was tried, not how large its numbers are.

    Two windows of one drift differ in every digit; they are still one belief.
    """
    unnamed = Hypothesis.model_validate({"id": "", **body})
    core = {
        "definition": unnamed.definition,
        "shapes": sorted(_lengths(workload) for workload in unnamed.workloads),
        "structures": unnamed.structures,
        "attempts": [attempt.experiment for attempt in unnamed.attempts],
        "world": unnamed.world,
    }
    return unnamed.model_copy(update={"id": digest_of(core)})
