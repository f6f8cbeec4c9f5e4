"""Claims of experiments against what live proofs showed."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from retuned.contract import digest_of
from retuned.stages.verdict import Interval
from retuned.stages.watch.proof import (
    Calibration,
    EffectInterval,
    Pace,
    ProofReason,
    ProofReport,
    Verdict,
    calibrate,
    forecast,
)

SPEEDUP = Interval(lower=1.8, point=2.0, upper=2.2, confidence=0.99)
HALF = Pace(steps=200, gpu_bound=100, seen=200)


def found(effect: float | None = -0.02, **report: Any) -> Calibration | None:
    facts: dict[str, Any] = {"verdict": Verdict.HELPS, "reason": ProofReason.FASTER, "pairs": 24}
    return calibrate(
        ProofReport(effect=effect, **(facts | report)),
        proposal="p",
        definition="gemm",
        artifact=digest_of("a"),
        at=datetime(2026, 11, 27, tzinfo=UTC),
        share=0.2,
        speedup=SPEEDUP,
        forecast=forecast(0.2, 2.0, pace=HALF, min_effect=0.005),
    )


def test_a_claim_is_the_gain_of_a_step_that_the_gpu_paces() -> None:
    one = found(low=-0.03, high=-0.01)
    assert one is not None
    assert one.claim.effect == pytest.approx(math.log(0.9))
    assert one.claim.low is not None
    assert one.claim.high is not None
    assert one.claim.low < one.claim.effect < one.claim.high < 0.0
    assert one.predicted == pytest.approx(math.log(0.95))
    assert one.ratio == pytest.approx(math.expm1(-0.02) / -0.1)
    assert Calibration.model_validate_json(one.model_dump_json()) == one, "with its inputs"


@pytest.mark.parametrize(
    ("low", "high", "differs"),
    [
        (-0.03, -0.01, True),
        (-0.11, -0.01, False),
        (-0.30, -0.20, True),
        (None, -0.01, False),
        (-0.03, None, True),
    ],
)
def test_two_numbers_differ_where_their_intervals_do(
    low: float | None, high: float | None, *, differs: bool
) -> None:
    one = found(low=low, high=high)
    assert one is not None
    assert one.differs is differs


def test_a_proof_without_pairs_calibrates_nothing() -> None:
    assert found(None, pairs=0) is None


def test_a_claim_of_nothing_has_no_ratio() -> None:
    one = found()
    assert one is not None
    assert one.model_copy(update={"share": 0.0}).ratio is None
    assert EffectInterval(effect=0.0).is_apart_from(one.claim) is False
