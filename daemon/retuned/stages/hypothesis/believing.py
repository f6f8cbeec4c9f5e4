"""From a drift report to beliefs that are worth an experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.hypothesis.records import (
    Hypothesis,
    HypothesisSettings,
    ShapeCost,
    lengths,
    named,
)


def hypothesize(
    shapes: Mapping[str, Sequence[ShapeCost]],
    *,
    report: DriftReport,
    total_gpu_time_ns: int,
    priors: Mapping[str, float] | None = None,
    known: Collection[str] = (),
    start: Mapping[str, tuple[str, ...]] | None = None,
    worlds: Mapping[str, str] | None = None,
    observed_ns: int = 0,
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
    observed_ns
        Length of the window, so that savings can be told in seconds; 0 means always busy.
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
            busy_ratio=min(1.0, total_gpu_time_ns / observed_ns) if observed_ns else 1.0,
            settings=settings,
        )
        if belief is not None and belief.id not in known:
            found.append(belief)
    return tuple(sorted(found, key=lambda each: (-each.expected_saving, each.definition)))


def _believe(
    costs: Sequence[ShapeCost],
    report: DriftReport,
    total_ns: int,
    prior: float | None,
    *,
    structures: tuple[str, ...],
    world: str,
    busy_ratio: float,
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
    where = ", ".join(lengths(cost.workload) for cost in costs)
    body = {
        "definition": definition,
        "workloads": tuple(cost.workload for cost in costs),
        "share": share,
        "expected_gain_ratio": gain,
        "expected_saving": saving,
        "because": f"{definition} takes {share:.1%} of kernel time at {where}; "
        f"{_source(costs, prior)} let expect {gain:.2f}x, {saving:.1%} of kernel time "
        f"({report.sentence})",
        "structures": structures,
        "world": world,
        "busy_ratio": busy_ratio,
    }
    return named(body)


def _gain(cost: ShapeCost, prior: float | None, settings: HypothesisSettings) -> float:
    if prior is not None:
        return min(max(prior, 1.0), settings.max_gain)
    if not _has_floor(cost):
        return settings.unknown_gain
    room = max(cost.median_ns / (cost.floor_ns + settings.launch_ns), 1.0)
    return float(min(room**settings.reach, settings.max_gain))


def _source(costs: Sequence[ShapeCost], prior: float | None) -> str:
    if prior is not None:
        return "earlier experiments"
    return "rooflines" if any(map(_has_floor, costs)) else "untuned shapes"


def _has_floor(cost: ShapeCost) -> bool:
    """Whether a roofline is known; one that launches beat was guessed too high."""
    return 0 < cost.floor_ns <= cost.median_ns
