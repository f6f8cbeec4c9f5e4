"""Evidence documents as a lab writes them, for worlds without a lab."""

from __future__ import annotations

from datetime import datetime

from retuned.contract import Digest, Environment, Solution
from retuned.stages.verdict import (
    Check,
    Evidence,
    EvidenceDocument,
    GroupTiming,
    Interval,
    Isolation,
    JudgeSettings,
    ShapeResult,
    Timing,
    freeze_of,
    judge,
)

MACHINE = Environment(arch="cpu:of a test")
GATES = tuple(Check(gate=f"G{number}") for number in range(7))


def measured(candidate: Digest, incumbent: Digest, speedup: Interval) -> Evidence:
    """What a finalist of one shape shows."""
    shape = ShapeResult(
        axes={},
        weight=1.0,
        incumbent_us=100.0,
        candidate_us=100.0 / speedup.point,
        speedup=speedup,
    )
    timing = Timing(
        shapes=(shape,),
        groups=(GroupTiming(members=(0,), speedup=speedup, p_value=0.001),),
        noise_floor_ratio=1.01,
        blocks=12,
        pairs=48,
        processes=2,
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
) -> EvidenceDocument:
    """A whole document; its verdict is the judge's own."""
    evidence = measured(candidate.digest, incumbent, speedup)
    return EvidenceDocument(
        plan=plan,
        definition=candidate.definition,
        candidate=candidate.digest,
        incumbent=incumbent,
        environment=environment,
        freeze=freeze_of(candidate, plan=plan, frozen_at=at),
        isolation=Isolation(system_calls_filtered=True, memory_check="a test's"),
        tried=2,
        settings=JudgeSettings(),
        evidence=evidence,
        verdict=judge(evidence),
        written_at=at,
    )
