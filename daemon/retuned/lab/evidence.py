"""Evidence records: samples of the candidates of one plan, as input of the judge. Pure.

A contender's evidence document is written from the gates' results and stored under its digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from retuned.contract import Digest, Solution, Workload
from retuned.lab.examiner import Timed
from retuned.lab.harness.variant import Variant
from retuned.lab.journal import Ended
from retuned.lab.resources import LabResources
from retuned.lab.statistics import (
    Estimate,
    ShapeSamples,
    bootstrap_saving,
    combine,
    estimate,
    holm,
    noise_floor,
)
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import (
    Check,
    Evidence,
    EvidenceDocument,
    Freeze,
    GroupTiming,
    Interval,
    JudgeSettings,
    RawSamples,
    RawTiming,
    SeedCommitment,
    ShapeResult,
    Timing,
    Verdict,
    groups_of,
    is_settled,
    raw_digest,
)

Floor = Callable[[Mapping[str, int]], float]
"""Time in us that no launch at these variable axes can beat; 0 where unknown."""
_SHAPE_CONFIDENCE = 0.95
_BOOTSTRAP_SEED = 20_250_101


def search_interval(timed: Timed) -> Interval | None:
    """Production-weighted speedup of a search; None without timings."""
    weighted = combine(timed.samples) if timed.passed else None
    return weighted.interval(_SHAPE_CONFIDENCE) if weighted else None


def search_shapes(timed: Timed | None, workloads: Sequence[Workload]) -> tuple[ShapeResult, ...]:
    """Return the search's speedup per shape: feedback for generators, not evidence.

    It is empty if the search failed, or if a shape has too few blocks for an estimate.
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
    """Return the re-measurement for the judge; None where shapes lack blocks.

    `adjusted_p` is the Holm-adjusted p-value of this finalist over all shapes. Parts of the shapes
    are adjusted by the number of `finalists` times the number of parts (Bonferroni). With parts,
    the whole and the parts each get half of the error probability. Bounds and p-values hold at the
    look at which the measurement ended.
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
    return holm([p_value(timed, settings) for timed in finals])


def p_value(timed: Timed, settings: JudgeSettings) -> float:
    """p-value of one finalist over all shapes, unadjusted; 1 if unknown."""
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
        # A part selected after the measurement had as many chances as there are parts.
        p_value=adjusted_p if whole else min(1.0, family * own_p),
    )


def _cautious(speedup: Interval, samples: Sequence[ShapeSamples], confidence: float) -> Interval:
    """Return the lower of the anytime-valid bound and the bootstrap's, which detects skew."""
    cost = sum(each.weight * float(np.median(each.incumbent_us)) for each in samples)
    saved, _, _ = bootstrap_saving(samples, confidence=confidence, seed=_BOOTSTRAP_SEED)
    lower = cost / (cost - saved) if saved < cost else speedup.lower
    return speedup.model_copy(update={"lower": min(speedup.lower, max(lower, 1e-9))})


def _p(weighted: Estimate, settings: JudgeSettings, *, units: int) -> float:
    threshold = -math.log1p(-min(settings.min_gain_ratio, 0.99))
    return weighted.anytime_p_value(threshold, units=units, alpha=settings.alpha)


_DIGITS = 4
"""Recorded decimals of a microsecond: a tenth of a nanosecond, below any clock."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """A candidate and its results of the gates."""

    solution: Solution
    freeze: Freeze
    variant: Variant | None
    checks: list[Check]
    spent_s: float = 0.0
    search: Timed | None = None
    """Timing of gate G5; None if it was not timed, or timed before an interruption."""
    interval: Interval | None = None
    final: Timed | None = None
    chosen: bool = False

    @property
    def failed(self) -> bool:
        return any(check.reason is not None for check in self.checks)


def write_document(
    contender: Contender,
    evidence: Evidence,
    *,
    verdict: Verdict,
    plan: ExperimentPlan,
    bay: LabResources,
    settings: JudgeSettings,
    tried: int,
    finalists: int,
    written_at: datetime,
) -> EvidenceDocument:
    hold_out = contender.final.commitment if contender.final is not None else None
    seeds = [SeedCommitment(purpose="search", commitment=bay.seeds.commitment, after_freeze=False)]
    if hold_out is not None:
        seeds.append(SeedCommitment(purpose="hold-out", commitment=hold_out, after_freeze=True))
    search = raw_of(contender.search, plan.workloads)
    final = raw_of(contender.final, plan.workloads)
    return EvidenceDocument(
        plan=plan.id,
        definition=plan.definition,
        candidate=contender.solution.digest,
        incumbent=plan.incumbent,
        environment=bay.toolchain.environment(),
        freeze=contender.freeze,
        isolation=bay.isolation,
        seeds=tuple(seeds),
        tried=tried,
        finalists=finalists,
        settings=settings,
        evidence=evidence.model_copy(update={"raw": raw_digest(search, final)}),
        verdict=verdict,
        search=search,
        final=final,
        written_at=written_at,
    )


def keep(root: Path, document: EvidenceDocument) -> Digest:
    data = document.model_dump_json().encode()
    digest = hashlib.sha256(data).hexdigest()
    folder = root / "evidence"
    folder.mkdir(exist_ok=True)
    partial = folder / f".{digest}.partial"
    partial.write_bytes(data)
    partial.replace(folder / f"{digest}.json")
    return f"sha256:{digest}"


def raw_of(timed: Timed | None, workloads: Sequence[Workload]) -> RawTiming | None:
    if timed is None or not timed.samples:
        return None
    axes = [dict(workloads[index].axes) for index in timed.shapes]
    return RawTiming(
        candidate=tuple(map(_samples, timed.samples, axes)),
        clone=tuple(map(_samples, timed.clones, axes)),
    )


def ended_of(
    timed: Timed, workloads: Sequence[Workload], *, p_value: float, seconds: float
) -> Ended:
    return Ended(
        p_value=p_value,
        checks=timed.checks,
        raw=raw_of(timed, workloads),
        processes=timed.processes,
        looks=timed.looks,
        commitment=timed.commitment,
        seconds=seconds,
    )


def timed_from(ended: Ended) -> Timed:
    raw = ended.raw or RawTiming(candidate=())
    return Timed(
        checks=ended.checks,
        samples=tuple(map(samples_from, raw.candidate)),
        clones=tuple(map(samples_from, raw.clone)),
        shapes=tuple(range(len(raw.candidate))),
        processes=ended.processes,
        looks=ended.looks,
        commitment=ended.commitment,
    )


def samples_from(rows: RawSamples) -> ShapeSamples:
    return ShapeSamples(
        weight=rows.weight,
        incumbent_us=np.array(rows.incumbent_us),
        candidate_us=np.array(rows.candidate_us),
        block=np.array(rows.block, dtype=np.int64),
        process=np.array(rows.process, dtype=np.int64) if rows.process else None,
    )


def _samples(samples: ShapeSamples, axes: dict[str, int]) -> RawSamples:
    return RawSamples(
        axes=axes,
        weight=samples.weight,
        incumbent_us=tuple(round(time, _DIGITS) for time in samples.incumbent_us.tolist()),
        candidate_us=tuple(round(time, _DIGITS) for time in samples.candidate_us.tolist()),
        block=tuple(samples.block.tolist()),
        process=() if samples.process is None else tuple(samples.process.tolist()),
    )


class Weighing:
    """Evidence about the candidates of one plan."""

    def __init__(
        self,
        plan: ExperimentPlan,
        bay: LabResources,
        *,
        incumbent: Solution,
        settings: JudgeSettings,
    ) -> None:
        self._plan = plan
        self._bay = bay
        self._incumbent = incumbent
        self._settings = settings

    def evidence(
        self, contender: Contender, *, adjusted_p: float = 1.0, finalists: int = 1
    ) -> Evidence:
        """Return the evidence of a contender, its re-measurement included where it passed.

        `adjusted_p` is the error probability of the re-measurement, adjusted for all `finalists`
        that were measured together.
        """
        timing = None
        if contender.final is not None and contender.final.passed:
            timing = self._timing(
                contender.final, contender, adjusted_p=adjusted_p, finalists=finalists
            )
        return self._gathered(contender, timing=timing)

    def is_decided(self, timed: Timed, contender: Contender, *, finalists: int) -> bool:
        """Whether more samples would not change the verdict on a finalist."""
        # Before the others are measured Holm's adjustment can be at most this.
        adjusted = min(1.0, finalists * p_value(timed, self._settings))
        timing = self._timing(timed, contender, adjusted_p=adjusted, finalists=finalists)
        evidence = self._gathered(contender, timing=timing, checks=timed.checks)
        return is_settled(evidence, self._settings)

    def _gathered(
        self, contender: Contender, *, timing: Timing | None, checks: Sequence[Check] = ()
    ) -> Evidence:
        return gather(
            contender.solution.digest,
            self._incumbent.digest,
            checks=[*contender.checks, *checks],
            search=contender.interval,
            finalist=contender.chosen,
            timing=timing,
        )

    def _timing(
        self, timed: Timed, contender: Contender, *, adjusted_p: float, finalists: int
    ) -> Timing | None:
        assert contender.variant is not None, "a finalist was compiled"
        return final_timing(
            timed,
            workloads=self._plan.workloads,
            floor=self._floor(contender.variant),
            adjusted_p=adjusted_p,
            finalists=finalists,
            settings=self._settings,
        )

    def _floor(self, variant: Variant) -> Floor:
        bay = self._bay
        return lambda axes: bay.toolchain.floor_us(
            bay.subject.definition, axes, parts=variant.parts
        )
