"""From samples to the records that the judge reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retuned.contract import Digest, Workload
from retuned.lab.examiner import Timed
from retuned.lab.statistics import (
    Estimate,
    ShapeSamples,
    bootstrap_saving,
    combine,
    estimate,
    holm,
    noise_floor,
)
from retuned.stages.verdict import (
    Check,
    Evidence,
    GroupTiming,
    Interval,
    JudgeSettings,
    ShapeResult,
    Timing,
    groups_of,
)

Floor = Callable[[Mapping[str, int]], float]
"""Time that no launch at these variable axes can beat, microseconds; 0 where unknown."""
_SHAPE_CONFIDENCE = 0.95
_BOOTSTRAP_SEED = 20_250_101


def search_interval(timed: Timed) -> Interval | None:
    """Production-weighted speedup of a search; None where nothing was timed."""
    weighted = combine(timed.samples) if timed.passed else None
    return weighted.interval(_SHAPE_CONFIDENCE) if weighted else None


def search_shapes(timed: Timed | None, workloads: Sequence[Workload]) -> tuple[ShapeResult, ...]:
    """Return what a search showed per shape: for generators, no evidence of anything.

    Empty where it failed, or where a shape has too few blocks for an estimate.
    """
    if timed is None or not timed.passed:
        return ()
    results = []
    for index, samples in zip(timed.shapes, timed.samples, strict=True):
        own = estimate(samples)
        if own is None:
            return ()
        results.append(
            ShapeResult(
                axes=dict(workloads[index].axes),
                weight=workloads[index].weight,
                incumbent_us=float(np.median(samples.incumbent_us)),
                candidate_us=float(np.median(samples.candidate_us)),
                speedup=own.interval(_SHAPE_CONFIDENCE),
            )
        )
    return tuple(results)


def final_timing(
    timed: Timed,
    *,
    workloads: Sequence[Workload],
    floor: Floor,
    adjusted_p: float,
    finalists: int,
    settings: JudgeSettings,
) -> Timing | None:
    """Return what the judge may know of a re-measurement; None where shapes lack blocks.

    `adjusted_p` is the Holm-adjusted p-value of this finalist over all shapes; parts of the shapes
    are adjusted by the number of `finalists` times the number of parts (Bonferroni). Where there
    are parts, the whole and the parts share the chance of a mistake in halves. Bounds and p-values
    hold at whichever look the measuring ended.
    """
    units = _units(timed)
    shapes = [
        _shape_result(samples, workload, floor(workload.axes), units=units)
        for samples, workload in zip(timed.samples, workloads, strict=True)
    ]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) != len(shapes):
        return None
    noise = noise_floor(timed.clones)
    if not math.isfinite(noise):
        return None
    groups = groups_of([dict(workload.axes) for workload in workloads])
    halves = 2 if len(groups) > 1 else 1
    return Timing(
        shapes=tuple(known),
        groups=tuple(
            _group(
                timed.samples,
                members,
                adjusted_p=min(1.0, halves * adjusted_p),
                family=halves * finalists * max(1, len(groups) - 1),
                units=units,
                settings=settings,
            )
            for members in groups
        ),
        noise_floor_ratio=noise,
        blocks=min(len(np.unique(samples.block)) for samples in timed.samples),
        pairs=min(len(samples.block) for samples in timed.samples),
        processes=timed.processes,
        looks=timed.looks,
    )


def adjusted_p_values(finals: Sequence[Timed], settings: JudgeSettings) -> tuple[float, ...]:
    """Holm-adjusted p-value of every finalist for "not faster by the required gain"."""
    return holm([p_value(timed, settings) for timed in finals])


def p_value(timed: Timed, settings: JudgeSettings) -> float:
    """p-value of one finalist over all shapes, before it is adjusted; 1 where nothing is known."""
    weighted = combine(timed.samples) if timed.passed else None
    return _p(weighted, settings, units=_units(timed)) if weighted is not None else 1.0


def gather(
    candidate: Digest,
    incumbent: Digest,
    *,
    checks: Sequence[Check],
    search: Interval | None = None,
    finalist: bool = False,
    timing: Timing | None = None,
    raw: Digest | None = None,
) -> Evidence:
    """Put one candidate's evidence together."""
    return Evidence(
        candidate=candidate,
        incumbent=incumbent,
        checks=tuple(checks),
        search=search,
        finalist=finalist,
        timing=timing,
        raw=raw,
    )


def _units(timed: Timed) -> int:
    """Fewest independent units of any shape: processes, or blocks of one."""
    return min((len(samples.ratios()) for samples in timed.samples), default=0)


def _shape_result(
    samples: ShapeSamples, workload: Workload, floor: float, *, units: int
) -> ShapeResult | None:
    own = estimate(samples)
    if own is None:
        return None
    return ShapeResult(
        axes=dict(workload.axes),
        weight=workload.weight,
        incumbent_us=float(np.median(samples.incumbent_us)),
        candidate_us=float(np.median(samples.candidate_us)),
        speedup=own.anytime_interval(_SHAPE_CONFIDENCE, units=units),
        floor_us=floor,
    )


def _group(
    samples: Sequence[ShapeSamples],
    members: tuple[int, ...],
    *,
    adjusted_p: float,
    family: int,
    units: int,
    settings: JudgeSettings,
) -> GroupTiming:
    chosen = [samples[index] for index in members]
    weighted = combine(chosen)
    assert weighted is not None, "every shape has an estimate by now"
    confidence = 1.0 - settings.alpha
    whole = len(members) == len(samples)
    own_p = _p(weighted, settings, units=units)
    return GroupTiming(
        members=members,
        speedup=_cautious(weighted.anytime_interval(confidence, units=units), chosen, confidence),
        # A part picked after the fact had as many chances as there are parts.
        p_value=adjusted_p if whole else min(1.0, family * own_p),
    )


def _cautious(speedup: Interval, samples: Sequence[ShapeSamples], confidence: float) -> Interval:
    """Take the lower of the anytime-valid bound and the bootstrap's, which sees skew."""
    cost = sum(each.weight * float(np.median(each.incumbent_us)) for each in samples)
    saved, _, _ = bootstrap_saving(samples, confidence=confidence, seed=_BOOTSTRAP_SEED)
    lower = cost / (cost - saved) if saved < cost else speedup.lower
    return speedup.model_copy(update={"lower": min(speedup.lower, max(lower, 1e-9))})


def _p(weighted: Estimate, settings: JudgeSettings, *, units: int) -> float:
    threshold = -math.log1p(-min(settings.min_gain_ratio, 0.99))
    return weighted.anytime_p_value(threshold, units=units, alpha=settings.alpha)
