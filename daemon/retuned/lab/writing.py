"""A contender's evidence document: written from what the gates said, kept under its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from retuned.contract import Digest, Solution, Workload
from retuned.lab.bay import LabResources
from retuned.lab.examiner import Timed
from retuned.lab.harness.variant import Variant
from retuned.lab.notebook import Ended
from retuned.lab.statistics import ShapeSamples
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import (
    Check,
    Evidence,
    EvidenceDocument,
    Freeze,
    Interval,
    JudgeSettings,
    RawSamples,
    RawTiming,
    SeedCommitment,
    Verdict,
    raw_digest,
)

_DIGITS = 4
"""Decimals of a microsecond that are kept: a tenth of a nanosecond, below any clock."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """A candidate on its way through the gates."""

    solution: Solution
    """What is tried."""
    freeze: Freeze
    """Gate G0."""
    variant: Variant | None
    """Compiled; None where it did not come so far."""
    checks: list[Check]
    """Answers of the gates so far."""
    spent_s: float = 0.0
    """Wall time it cost so far."""
    search: Timed | None = None
    """Timing of gate G5; None where it was not timed, or before an interruption."""
    interval: Interval | None = None
    """Production-weighted speedup of gate G5."""
    final: Timed | None = None
    """Timing of gate G6."""
    chosen: bool = False
    """Whether it was among the best of the search: measured from zero, if time allows."""

    @property
    def failed(self) -> bool:
        """Whether a gate refused it."""
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
    """Put everything known of a contender into one document."""
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
    """Keep a document under the digest of its bytes, beside the artifacts."""
    data = document.model_dump_json().encode()
    digest = hashlib.sha256(data).hexdigest()
    folder = root / "evidence"
    folder.mkdir(exist_ok=True)
    partial = folder / f".{digest}.partial"
    partial.write_bytes(data)
    partial.replace(folder / f"{digest}.json")
    return f"sha256:{digest}"


def raw_of(timed: Timed | None, workloads: Sequence[Workload]) -> RawTiming | None:
    """Return every pair of a timing as it is kept; None where nothing was timed."""
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
    """Return a re-measurement as it is kept until it is judged."""
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
    """Return a re-measurement as it was before it was kept."""
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
    """Return times as they are computed with."""
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
