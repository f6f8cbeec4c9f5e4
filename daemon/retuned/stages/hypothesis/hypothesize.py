"""Hypotheses from a drift report, rare shapes that only slots counted included. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import log as ln

from retuned.contract import Workload
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.hypothesis.records import (
    Hypothesis,
    HypothesisSettings,
    ShapeCost,
    lengths,
    named,
)
from retuned.stages.profile import key_of


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
    """Turn a ``retune`` report into hypotheses that are worth an experiment, most saving first.

    Parameters
    ----------
    shapes
        Per definition, the cost of each shape in the present window.
    report
        The drift report; only ``retune`` leads to hypotheses.
    total_gpu_time_ns
        Of the whole window, so that shares refer to all kernels.
    priors
        Gain that earlier experiments found per definition; better than a roofline.
    known
        Ids of existing hypotheses, which are not made again.
    start
        Structures to try first per definition, such as the audited one in production, where other
        parameters are the smallest change. An unnamed definition tries all.
    worlds
        Per definition, the digest of the variant in production and of the environment.
    observed_ns
        Length of the window, to express savings in seconds; 0 means always busy.
    settings
        How gains are estimated.

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
        f"{_source(costs, prior)} suggest {gain:.2f}x, {saving:.1%} of kernel time "
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
    """Whether a roofline is known; one that launches beat was estimated too high."""
    return 0 < cost.floor_ns <= cost.median_ns


LEAST = 8
"""Fewest launches of a shape without a trace for which a cost is estimated."""


def unseen(
    known: Sequence[ShapeCost],
    counts: Mapping[str, int],
    *,
    floor_ns: Callable[[Workload], int],
    overhead_ns: int,
) -> list[ShapeCost]:
    """Return shapes that were counted but in no trace, timed by the roofline's proportions.

    The nearest timed shape provides the time. This estimate suffices to choose the shapes that an
    experiment measures. Without a roofline, the nearest lengths decide.

    Parameters
    ----------
    known
        Shapes of one definition that were timed.
    counts
        Launches of that definition by lengths, see `retuned.stages.profile.Counts`.
    floor_ns
        Roofline of a shape; 0 if unknown.
    overhead_ns
        Time of a launch besides the kernel.

    Examples
    --------
    >>> def cost(rows, median):
    ...     work = Workload(definition="d", axes={"M": rows})
    ...     return ShapeCost(workload=work, gpu_time_ns=9, median_ns=median)
    >>> found = unseen([cost(1, 10), cost(64, 80)], {"32": 100, "64": 5, "2": 7},
    ...     floor_ns=lambda _: 0, overhead_ns=2_000)
    >>> [(each.workload.axes, each.median_ns, each.gpu_time_ns) for each in found]
    [({'M': 32}, 80, 8000)]
    """
    if not known:
        return []
    definition, names = known[0].workload.definition, list(known[0].workload.axes)
    seen = {key_of(cost.workload.axes.values()) for cost in known}
    found = []
    for key, launches in counts.items():
        lengths = [int(length) for length in key.split("x")]
        if key in seen or launches < LEAST or len(lengths) != len(names) or min(lengths) < 1:
            continue
        axes = dict(zip(names, lengths, strict=True))
        workload = Workload(definition=definition, axes=axes, weight=launches)
        found.append(_guessed(workload, known, floor_ns(workload), overhead_ns))
    return found


def _guessed(
    workload: Workload, known: Sequence[ShapeCost], floor: int, overhead_ns: int
) -> ShapeCost:
    least = floor + overhead_ns

    def distance(cost: ShapeCost) -> tuple[float, float]:
        work = abs(ln((cost.floor_ns + overhead_ns + 1) / (least + 1)))
        return work, _apart(cost.workload.axes, workload.axes)

    near = min(known, key=distance)
    median_ns = round(near.median_ns * (least + 1) / (near.floor_ns + overhead_ns + 1))
    return ShapeCost(
        workload=workload,
        gpu_time_ns=round(median_ns * workload.weight),
        median_ns=median_ns,
        floor_ns=floor,
    )


def _apart(some: Mapping[str, int], others: Mapping[str, int]) -> float:
    return sum(abs(ln(max(1, some[name]) / max(1, others[name]))) for name in some)
