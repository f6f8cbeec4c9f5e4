"""Evidence checks: whether a document follows from its raw pairs and matches the plan. Pure.

Before the daemon signs evidence of a lab, it recomputes the numbers and compares them with the
document and with the finding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from retuned.contract import Digest, Workload
from retuned.lab.evidence import final_timing, p_value, samples_from
from retuned.lab.examiner import Timed
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.profile import bucket_low
from retuned.stages.verdict import (
    Claim,
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    Interval,
    JudgeSettings,
    RawSamples,
    RawTiming,
    Status,
    Timing,
    contradiction_in,
    doubt_of,
    raw_digest,
)

_TOLERANCE = 1e-3
"""Relative; raw pairs are stored to a tenth of a nanosecond."""
_Measured = tuple[Mapping[str, int], float]


def wrong_with_plan(document: EvidenceDocument, plan: ExperimentPlan) -> str | None:
    """Return how a document differs from the plan; None if it matches.

    Shapes and weights must equal the plan's, in its order: a win at old weights, or without a
    shape, is not a win. Thresholds must be those of this installation.
    """
    if document.definition != plan.definition or document.freeze.definition != plan.definition:
        return f"it is about {document.definition}, the plan about {plan.definition}"
    if document.settings != JudgeSettings(buckets=plan.buckets):
        return "it was judged by other thresholds than those of this installation"
    timing = document.evidence.timing
    asked: list[_Measured] = [(dict(each.axes), each.weight) for each in plan.workloads]
    for name, said in (
        ("the bounds", [(s.axes, s.weight) for s in timing.shapes] if timing else None),
        ("the raw pairs", _measured(document.final.candidate) if document.final else None),
        ("the clone's pairs", _measured(document.final.clone) if document.final else None),
    ):
        if said is not None and list(said) != asked:
            return f"{name} are of other shapes or weights than the plan's"
    return _wide(document, plan)


def _measured(rows: Sequence[RawSamples]) -> Sequence[_Measured]:
    return [(each.axes, each.weight) for each in rows]


def _wide(document: EvidenceDocument, plan: ExperimentPlan) -> str | None:
    """Return how a promotion's guard exceeds the plan's shapes; None if it does not."""
    if document.verdict.status is not Status.PROMOTE:
        return None
    for axis, (low, high) in document.verdict.guard.bounds.items():
        lengths = [each.axes[axis] for each in plan.workloads if axis in each.axes]
        if not lengths or high > max(lengths) or low < bucket_low(min(lengths), plan.buckets):
            return f"it is for {axis} from {low} to {high}, the plan has {sorted(lengths)}"
    return None


def wrong_with_raw(document: EvidenceDocument) -> str | None:
    """Return the number that does not follow from the raw pairs; None if all do.

    A promotion must have raw pairs; other verdicts may have none.
    """
    named = document.evidence.raw
    if named is not None and named != raw_digest(document.search, document.final):
        return "its raw pairs are not those whose digest it names"
    said, raw = document.evidence.timing, document.final
    if raw is None or said is None:
        promoted = document.verdict.status is Status.PROMOTE
        return "it promotes without raw pairs to compute its bounds from" if promoted else None
    if sum(rows.weight for rows in raw.candidate) <= 0.0:
        return "no shape of its raw pairs has a weight"
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
        samples=tuple(map(samples_from, raw.candidate)),
        clones=tuple(map(samples_from, raw.clone)),
        shapes=tuple(range(len(raw.candidate))),
        processes=_processes(raw) or said.processes,
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
        finalists=document.finalists,
        settings=document.settings,
    )


def _processes(raw: RawTiming) -> int:
    """Fewest processes that timed a shape; 0 in a document that does not name them."""
    return min((len(set(rows.process)) for rows in raw.candidate), default=0)


def _differences(said: Timing, again: Timing) -> Iterator[str]:
    counts = ("blocks", "pairs", "processes")
    for name in counts:
        if getattr(said, name) != getattr(again, name):
            yield f"{name}: the document has {getattr(said, name)}, computed {getattr(again, name)}"
    if not _same(said.noise_floor_ratio, again.noise_floor_ratio):
        yield f"noise floor: {said.noise_floor_ratio:.4f}, computed {again.noise_floor_ratio:.4f}"
    if len(said.shapes) != len(again.shapes) or len(said.groups) != len(again.groups):
        yield "it has other shapes than its raw pairs"
        return
    for one, other in zip(said.shapes, again.shapes, strict=True):
        if (one.axes, one.weight) != (other.axes, other.weight):
            yield f"it has {one.axes} at weight {one.weight}, its raw pairs {other.axes}"
        if not _alike(one.speedup, other.speedup):
            yield f"speedup at {one.axes}: {one.speedup.point:.4f}x, computed {other.speedup}"
        times = ((one.incumbent_us, other.incumbent_us), (one.candidate_us, other.candidate_us))
        if not all(_same(*pair) for pair in times):
            yield f"times at {one.axes}: its raw pairs have other medians"
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


MAX_BYTES = 32 << 20
"""Largest document that is signed; its envelope must stay readable."""


def claim_of(plan: ExperimentPlan, found: Finding, *, environment: Digest) -> Claim:
    return Claim(
        candidate=found.solution.digest,
        incumbent=plan.incumbent,
        plan=plan.id,
        environment=environment,
        guard=found.verdict.guard,
        speedup=found.verdict.speedup,
        trust=found.solution.trust,
    )


def wrong_with(
    raw: bytes, plan: ExperimentPlan, finding: Finding, *, environment: Digest | None
) -> Doubt | None:
    """Return why a document must not be signed; None if it passes every check.

    `environment` is the required environment of the measurement. None accepts the document's, for
    callers that compare it with the servers by other means.
    """
    if len(raw) > MAX_BYTES:
        return Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{len(raw)} bytes are too many")
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != finding.verdict.evidence:
        detail = "its digest differs from the one that the lab has named"
        return Doubt(fault=EvidenceFault.ALTERED, detail=detail)
    try:
        document = EvidenceDocument.model_validate_json(raw)
    except ValidationError as error:
        return Doubt(
            fault=EvidenceFault.UNREADABLE, detail=f"it has {error.error_count()} problems"
        )
    verdict = finding.verdict
    wrong = wrong_with_plan(document, plan)
    if (document.verdict.status, document.verdict.reason) != (verdict.status, verdict.reason):
        wrong = f"the document has {document.verdict.reason}, the lab reported {verdict.reason}"
    wrong = wrong or wrong_with_raw(document)
    if wrong is not None:
        return Doubt(fault=EvidenceFault.CONTRADICTED, detail=wrong)
    place = environment or document.environment.digest
    doubt = doubt_of(document, claim_of(plan, finding, environment=place))
    if doubt is None or verdict.status is Status.PROMOTE:
        return doubt
    # a rejection promotes nothing: only its subject and its consistency are checked
    return contradiction_in(document) if doubt.fault is EvidenceFault.CONTRADICTED else doubt
