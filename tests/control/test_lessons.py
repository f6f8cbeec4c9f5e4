"""Which verdicts of live proofs leave a lesson, and which lessons a target leaves in force."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.operators import examples

from retuned.api.proposal import LiveProofStatus
from retuned.control.lessons import in_force, lesson_from, lesson_of, report_of, with_lesson
from retuned.stages.gate import LiveProof
from retuned.stages.proposal import Lesson, LessonKind, ServerKey
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict
from retuned_operator.schema import SwapProposal, TuningTarget, read

NOW = examples.NOW
OTHER = "sha256:" + "5" * 64


def entry(verdict: str, **changes: Any) -> LiveProofStatus:
    body: dict[str, Any] = {
        "name": "chat-0",
        "uid": "u0",
        "epoch": 2,
        "environment": OTHER,
        "wave": 0,
        "swapped": 1,
        "since": NOW,
        "rule": LiveProof(),
        "verdict": verdict,
        "reason": "slower",
        "sentence": "a sentence",
        "at": NOW,
        "effect": 0.03,
        "pairs": 9,
    }
    return LiveProofStatus.model_validate(body | changes)


def proposal(*entries: LiveProofStatus) -> SwapProposal:
    found = read(SwapProposal, examples.a_swap())
    status = found.status.model_copy(update={"live_proofs": entries})
    return found.model_copy(update={"status": status})


def a_lesson(**changes: Any) -> Lesson:
    one = entry("harms")
    return lesson_from(proposal(one), one, made_from=None, engine="").model_copy(update=changes)


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("harms", LessonKind.HARMS),
        ("no-measurable-effect", LessonKind.NO_MEASURABLE_EFFECT),
        ("helps", None),
        ("too-little-traffic", None),
        ("not-concluded", None),
        ("", None),
    ],
)
def test_two_verdicts_leave_a_lesson(verdict: str, kind: LessonKind | None) -> None:
    one = entry(verdict)
    found = [
        lesson_from(proposal(one), each, made_from=OTHER, engine="vllm 1").kind
        for each in with_lesson(proposal(one))
    ]
    assert found == ([] if kind is None else [kind])


def test_a_lesson_has_the_claim_the_server_and_what_was_shown() -> None:
    one = entry("harms")
    resource = proposal(one)
    found = lesson_from(resource, one, made_from=OTHER, engine="vllm 1")
    spec = resource.spec
    assert found.artifacts == (spec.artifact.digest, OTHER)
    assert found.key == ServerKey(environment=OTHER, engine="vllm 1")
    assert (found.definition, found.guard) == (spec.kernel, spec.guard)
    assert found.claimed_saving == spec.expected_saving
    assert (found.effect, found.low, found.pairs, found.at) == (0.03, None, 9, NOW)
    assert report_of(one).verdict is Verdict.HARMS


def test_where_processes_differed_the_environment_of_the_measurement_counts() -> None:
    one = entry("harms", environment="")
    resource = proposal(one)
    found = lesson_from(resource, one, made_from=None, engine="")
    assert found.key.environment == resource.spec.environment


def test_a_proof_without_a_verdict_against_the_swap_makes_no_lesson() -> None:
    report = ProofReport(verdict=Verdict.HELPS, reason=ProofReason.FASTER)
    key = ServerKey(environment=OTHER)
    record = examples.a_proposal()
    made = lesson_of(record, report, sentence="", made_from=None, key=key, at=NOW)
    assert made is None


def test_a_lesson_that_is_newer_than_what_was_lifted_holds() -> None:
    body = examples.a_target()
    body["spec"]["liftedLessons"] = [
        {"kernel": "rmsnorm_h512", "at": NOW.isoformat(), "reason": "another model"}
    ]
    target = read(TuningTarget, body)
    later = a_lesson(at=NOW + timedelta(minutes=1))
    other = a_lesson(definition="rope_h512", at=NOW - timedelta(minutes=1))
    assert in_force([later, a_lesson(), other], target) == (other, later)
