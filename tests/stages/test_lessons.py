"""Lessons of live proofs: which claims they refuse, and what ends them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.contract import Guard, digest_of
from retuned.stages.proposal import (
    Lesson,
    LessonKind,
    RefusalReason,
    ServerKey,
    SwapClaim,
    holds_against,
    lesson_against,
)

FAILED, OTHER = digest_of("failed"), digest_of("other")
GUARD = Guard(bounds={"M": (1, 64)})
KEY = ServerKey(environment=digest_of("h200"), engine="vllm 0.33.0", graphs=True, busy_ratio=0.30)
AT = datetime(2026, 11, 27, tzinfo=UTC)


def lesson(kind: LessonKind = LessonKind.NO_MEASURABLE_EFFECT, **changes: Any) -> Lesson:
    facts: dict[str, Any] = {
        "proposal": "p",
        "experiment": "e",
        "definition": "gemm",
        "guard": GUARD,
        "artifacts": (FAILED,),
        "key": KEY,
        "kind": kind,
        "reason": "within-margin",
        "sentence": "no measurable effect (within-margin)",
        "claimed_saving": 0.04,
        "claimed_speedup": 1.5,
        "at": AT,
    }
    return Lesson(**(facts | changes))


def claim(artifact: str = FAILED, *, saving: float = 0.04, **changes: Any) -> SwapClaim:
    facts: dict[str, Any] = {"definition": "gemm", "guard": GUARD, "key": KEY}
    return SwapClaim(artifact=artifact, saving=saving, **(facts | changes))


@pytest.mark.parametrize("kind", LessonKind)
@pytest.mark.parametrize(
    ("proposed", "refused"),
    [
        (claim(), True),
        (claim(saving=0.5), True),  # the same artifact promises nothing new
        (claim(OTHER), True),
        (claim(OTHER, saving=0.079), True),
        (claim(OTHER, saving=0.08), False),
        (claim(OTHER, guard=Guard(bounds={"M": (65, 128)})), False),
        (claim(OTHER, definition="softmax"), False),
    ],
)
def test_what_a_claim_must_be_to_be_another_one(
    kind: LessonKind, proposed: SwapClaim, *, refused: bool
) -> None:
    assert holds_against(lesson(kind), proposed) is refused


def test_of_a_tunable_any_rules_are_the_same() -> None:
    name = "tunable:moe.kernel"
    other = claim(OTHER, definition=name, guard=Guard(bounds={"rows": (65, 128)}))
    assert holds_against(lesson(definition=name), other)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"environment": digest_of("another driver")}, False),
        ({"engine": "vllm 0.34.0"}, False),
        ({"engine": ""}, True),
        ({"graphs": False}, False),
        ({"graphs": None}, True),
        ({"busy_ratio": 0.49}, True),
        ({"busy_ratio": 0.51}, False),
        ({"busy_ratio": 0.39}, True),
        ({"busy_ratio": 0.95}, False),
        ({"busy_ratio": None}, True),
    ],
)
def test_a_lesson_is_about_one_server(change: dict[str, Any], *, same: bool) -> None:
    key = KEY.model_copy(update=change)
    assert holds_against(lesson(), claim(key=key)) is same
    assert KEY.is_as(key) is key.is_as(KEY) is same


def test_a_share_beside_a_border_is_no_other_server() -> None:
    below, above = (KEY.model_copy(update={"busy_ratio": each}) for each in (0.48, 0.53))
    assert below.is_as(above)


def test_what_harms_is_refused_in_its_environment_whatever_the_load() -> None:
    busy = KEY.model_copy(update={"busy_ratio": 0.95, "engine": "vllm 0.34.0"})
    assert holds_against(lesson(LessonKind.HARMS), claim(key=busy))
    assert not holds_against(lesson(LessonKind.HARMS), claim(OTHER, key=busy))
    moved = KEY.model_copy(update={"environment": digest_of("another driver")})
    assert not holds_against(lesson(LessonKind.HARMS), claim(key=moved))


@given(saving=st.floats(0.0, 1.0), busy=st.floats(0.0, 1.0))
def test_time_ends_no_lesson_and_its_own_artifact_never_passes(saving: float, busy: float) -> None:
    key = KEY.model_copy(update={"busy_ratio": busy})
    old = lesson(key=key, at=AT - timedelta(days=3650))
    assert holds_against(old, claim(saving=saving, key=key))


def test_the_refusal_names_the_newest_proof() -> None:
    newer = lesson(sentence="harms (slower)", at=AT + timedelta(days=1), artifacts=(OTHER,))
    refusal = lesson_against([newer, lesson()], claim())
    assert refusal is not None
    assert refusal.reason is RefusalReason.LIVE_LESSON
    assert "a variant with a like claim was proven" in refusal.detail
    assert "2026-11-28: harms (slower)" in refusal.detail
    assert "4.00%" in refusal.detail
    assert lesson_against([], claim()) is None
