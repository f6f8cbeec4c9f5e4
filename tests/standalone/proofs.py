"""Evidence documents as an honest lab writes them, for worlds without a lab."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

import numpy as np

from retuned.contract import Digest, Environment, Solution, Workload
from retuned.lab.evidence import final_timing, p_value
from retuned.lab.examiner import Timed
from retuned.lab.statistics import ShapeSamples
from retuned.stages.verdict import (
    Check,
    Evidence,
    EvidenceDocument,
    Interval,
    Isolation,
    JudgeSettings,
    RawSamples,
    RawTiming,
    Timing,
    freeze_of,
    judge,
)

MACHINE = Environment(arch="cpu:of a test")
GATES = tuple(Check(gate=f"G{number}") for number in range(7))
ONE_SHAPE = (Workload(definition="linear", axes={}),)
_BLOCKS, _PAIRS, _SPREAD = 12, 4, 0.038
_INCUMBENT_US = 100.0


def interval(speedup: float) -> Interval:
    """Bounds that follow from the samples of one shape; about 5 % to either side."""
    return _timing(round(speedup, 6), ((),), (1.0,)).groups[0].speedup


def samples(axes: dict[str, int], weight: float, speedup: float) -> RawSamples:
    """Pairs whose blocks scatter around a speedup, as they would be timed."""
    blocks = np.repeat(np.arange(_BLOCKS), _PAIRS)
    apart = np.where(blocks % 2 == 0, _SPREAD, -_SPREAD)
    candidate = _INCUMBENT_US / (speedup * np.exp(apart))
    return RawSamples(
        axes=axes,
        weight=weight,
        incumbent_us=tuple([_INCUMBENT_US] * len(blocks)),
        candidate_us=tuple(candidate.tolist()),
        block=tuple(blocks.tolist()),
    )


def raw(workloads: Sequence[Workload], speedup: float) -> RawTiming:
    """Everything timed of one finalist: one speedup at every shape, clones 1 % apart."""
    return RawTiming(
        candidate=tuple(samples(dict(w.axes), w.weight, speedup) for w in workloads),
        clone=tuple(_clone(dict(w.axes), w.weight) for w in workloads),
    )


def _clone(axes: dict[str, int], weight: float) -> RawSamples:
    own = samples(axes, weight, 1.0)
    return own.model_copy(update={"candidate_us": tuple([_INCUMBENT_US / 1.01] * len(own.block))})


def timing_of(final: RawTiming, *, settings: JudgeSettings | None = None) -> Timing:
    """Compute what follows from raw pairs, as the lab does."""
    settings = settings or JudgeSettings()
    timed = Timed(
        checks=(),
        samples=tuple(map(_arrays, final.candidate)),
        clones=tuple(map(_arrays, final.clone)),
        shapes=tuple(range(len(final.candidate))),
        processes=2,
    )
    workloads = [
        Workload(definition="linear", axes=rows.axes, weight=rows.weight)
        for rows in final.candidate
    ]
    found = final_timing(
        timed,
        workloads=workloads,
        floor=lambda _axes: 0.0,
        adjusted_p=p_value(timed, settings),
        finalists=1,
        settings=settings,
    )
    assert found is not None
    return found


def _arrays(rows: RawSamples) -> ShapeSamples:
    return ShapeSamples(
        weight=rows.weight,
        incumbent_us=np.array(rows.incumbent_us),
        candidate_us=np.array(rows.candidate_us),
        block=np.array(rows.block, dtype=np.int64),
    )


@lru_cache(maxsize=256)
def _timing(
    speedup: float, axes: tuple[tuple[tuple[str, int], ...], ...], weights: tuple[float, ...]
) -> Timing:
    workloads = [
        Workload(definition="linear", axes=dict(each), weight=weight)
        for each, weight in zip(axes, weights, strict=True)
    ]
    return timing_of(raw(workloads, speedup))


def measured(
    candidate: Digest,
    incumbent: Digest,
    speedup: Interval,
    *,
    workloads: Sequence[Workload] = ONE_SHAPE,
) -> Evidence:
    """What a finalist shows."""
    timing = _timing(
        round(speedup.point, 6),
        tuple(tuple(w.axes.items()) for w in workloads),
        tuple(w.weight for w in workloads),
    )
    return Evidence(
        candidate=candidate, incumbent=incumbent, checks=GATES, finalist=True, timing=timing
    )


def proof(
    candidate: Solution,
    *,
    incumbent: Digest,
    plan: str,
    speedup: Interval,
    at: datetime,
    environment: Environment = MACHINE,
    workloads: Sequence[Workload] = ONE_SHAPE,
    settings: JudgeSettings | None = None,
    definition: str | None = None,
) -> EvidenceDocument:
    """A whole document: raw pairs, what follows from them, and the judge's own verdict."""
    settings = settings or JudgeSettings()
    evidence = measured(candidate.digest, incumbent, speedup, workloads=workloads)
    return EvidenceDocument(
        plan=plan,
        definition=definition or candidate.definition,
        candidate=candidate.digest,
        incumbent=incumbent,
        environment=environment,
        freeze=freeze_of(candidate, plan=plan, frozen_at=at),
        isolation=Isolation(system_calls_filtered=True, memory_check="a test's"),
        tried=2,
        settings=settings,
        evidence=evidence,
        verdict=judge(evidence, settings),
        final=raw(workloads, round(speedup.point, 6)),
        written_at=at,
    )
