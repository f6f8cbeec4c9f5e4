"""Do a document's bounds follow from its own raw pairs? Computed again, by whoever doubts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from retuned.contract import Workload
from retuned.lab.evidence import final_timing, p_value
from retuned.lab.examiner import Timed
from retuned.lab.statistics import ShapeSamples
from retuned.stages.verdict import EvidenceDocument, Interval, RawSamples, Timing

_TOLERANCE = 1e-3
"""Relative; raw pairs are kept to a tenth of a nanosecond."""


def wrong_with_raw(document: EvidenceDocument) -> str | None:
    """Say which number does not follow from the raw pairs; None if all do, or there are none."""
    said = document.evidence.timing
    if document.final is None or said is None:
        return None
    again = _timing(document)
    if again is None:
        return "its raw pairs are too few for the bounds it gives"
    return next(_differences(said, again), None)


def _timing(document: EvidenceDocument) -> Timing | None:
    raw, said = document.final, document.evidence.timing
    assert raw is not None, "asked for only where there is one"
    assert said is not None, "asked for only where there is one"
    timed = Timed(
        checks=(),
        samples=tuple(map(_samples, raw.candidate)),
        clones=tuple(map(_samples, raw.clone)),
        shapes=tuple(range(len(raw.candidate))),
        processes=said.processes,
        looks=said.looks,
    )
    floors = {tuple(sorted(shape.axes.items())): shape.floor_us for shape in said.shapes}
    return final_timing(
        timed,
        workloads=[
            Workload(definition=document.definition, axes=rows.axes, weight=rows.weight)
            for rows in raw.candidate
        ],
        floor=lambda axes: floors.get(tuple(sorted(axes.items())), 0.0),
        adjusted_p=p_value(timed, document.settings),
        finalists=1,
        settings=document.settings,
    )


def _differences(said: Timing, again: Timing) -> Iterator[str]:
    counts = ("blocks", "pairs")
    for name in counts:
        if getattr(said, name) != getattr(again, name):
            yield f"{name}: it says {getattr(said, name)}, there are {getattr(again, name)}"
    if not _same(said.noise_floor_ratio, again.noise_floor_ratio):
        yield f"noise floor: {said.noise_floor_ratio:.4f}, computed {again.noise_floor_ratio:.4f}"
    if len(said.shapes) != len(again.shapes) or len(said.groups) != len(again.groups):
        yield "it has other shapes than its raw pairs"
        return
    for one, other in zip(said.shapes, again.shapes, strict=True):
        if one.axes != other.axes or not _alike(one.speedup, other.speedup):
            yield f"speedup at {one.axes}: {one.speedup.point:.4f}x, computed {other.speedup}"
    for group, fresh in zip(said.groups, again.groups, strict=True):
        if group.members != fresh.members or not _alike(group.speedup, fresh.speedup):
            yield f"shapes {group.members} together: {group.speedup}, computed {fresh.speedup}"
        # Adjusting over more finalists only ever makes it larger.
        if group.p_value < fresh.p_value * (1.0 - 0.05) - 1e-12:
            yield f"p of {group.members}: {group.p_value:.3g}, computed {fresh.p_value:.3g}"


def _alike(one: Interval, other: Interval) -> bool:
    pairs = ((one.lower, other.lower), (one.point, other.point), (one.upper, other.upper))
    return all(_same(left, right) for left, right in pairs)


def _same(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_TOLERANCE)


def _samples(rows: RawSamples) -> ShapeSamples:
    return ShapeSamples(
        weight=rows.weight,
        incumbent_us=np.array(rows.incumbent_us),
        candidate_us=np.array(rows.candidate_us),
        block=np.array(rows.block, dtype=np.int64),
    )
