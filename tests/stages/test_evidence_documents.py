"""Documents carry exactly the claim they were written for; servers are compared with them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from tests.standalone.local_world import INCUMBENT, LOSER, WINNER
from tests.standalone.proofs import MACHINE, interval, proof

from retuned.contract import Digest, Environment, Guard, TrustClass
from retuned.stages.verdict import (
    Check,
    Claim,
    EvidenceDocument,
    EvidenceFault,
    RawTiming,
    Reason,
    ServerEnvironment,
    Status,
    Timing,
    contradiction_in,
    differences,
    doubt_of,
    is_settled,
    judge,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
OTHER: Digest = "sha256:" + "9" * 64
DOCUMENT = proof(WINNER, incumbent=INCUMBENT.digest, plan="p", speedup=interval(2.0), at=NOW)
CLAIM = Claim(
    candidate=WINNER.digest,
    incumbent=INCUMBENT.digest,
    plan="p",
    environment=MACHINE.digest,
    guard=Guard(),
    speedup=interval(2.0),
    trust=TrustClass.PARAMETERS,
)


def fault(document: EvidenceDocument = DOCUMENT, **changes: Any) -> EvidenceFault | None:
    doubt = doubt_of(document, replace(CLAIM, **changes))
    return doubt.fault if doubt is not None else None


def test_a_document_carries_the_claim_it_was_written_for() -> None:
    assert fault() is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"candidate": OTHER}, EvidenceFault.OTHER_CANDIDATE),
        ({"incumbent": OTHER}, EvidenceFault.OTHER_INCUMBENT),
        ({"plan": "q"}, EvidenceFault.OTHER_PLAN),
        ({"environment": OTHER}, EvidenceFault.OTHER_ENVIRONMENT),
        ({"environment": None}, EvidenceFault.OTHER_ENVIRONMENT),
        ({"guard": Guard(bounds={"M": (1, 8)})}, EvidenceFault.CONTRADICTED),
        ({"speedup": interval(2.1)}, EvidenceFault.CONTRADICTED),
        ({"speedup": None}, EvidenceFault.CONTRADICTED),
        ({"trust": TrustClass.GENERATED}, EvidenceFault.CONTRADICTED),
    ],
)
def test_any_other_claim_is_doubted(changes: dict[str, Any], expected: EvidenceFault) -> None:
    assert fault(**changes) is expected


def test_a_rejection_carries_no_claim() -> None:
    lost = proof(LOSER, incumbent=INCUMBENT.digest, plan="p", speedup=interval(0.9), at=NOW)
    assert fault(lost, candidate=LOSER.digest, speedup=interval(0.9)) is EvidenceFault.CONTRADICTED
    assert contradiction_in(lost) is None


def test_a_verdict_that_the_numbers_do_not_give_is_found() -> None:
    checks = (*DOCUMENT.evidence.checks[:-1], Check(gate="G6", reason=Reason.WRONG_OUTPUT))
    evidence = DOCUMENT.evidence.model_copy(update={"checks": checks})
    lying = DOCUMENT.model_copy(update={"evidence": evidence})
    assert fault(lying) is EvidenceFault.CONTRADICTED
    assert contradiction_in(lying) is not None


@pytest.mark.parametrize("gate", range(7))
def test_a_document_without_one_gate_carries_nothing(gate: int) -> None:
    checks = tuple(each for each in DOCUMENT.evidence.checks if each.gate != f"G{gate}")
    evidence = DOCUMENT.evidence.model_copy(update={"checks": checks})
    found = fault(DOCUMENT.model_copy(update={"evidence": evidence}))
    # the search's gate only ranks: nothing promotes by it
    assert found is (None if gate == 5 else EvidenceFault.CONTRADICTED)


def test_parts_of_different_candidates_do_not_fit_together() -> None:
    freeze = DOCUMENT.freeze.model_copy(update={"candidate": OTHER})
    assert fault(DOCUMENT.model_copy(update={"freeze": freeze})) is EvidenceFault.CONTRADICTED
    freeze = DOCUMENT.freeze.model_copy(update={"plan": "q"})
    assert fault(DOCUMENT.model_copy(update={"freeze": freeze})) is EvidenceFault.CONTRADICTED


def test_words_may_change_between_versions_and_numbers_may_not() -> None:
    words = DOCUMENT.verdict.model_copy(update={"detail": "said otherwise", "evidence": OTHER})
    assert fault(DOCUMENT.model_copy(update={"verdict": words})) is None
    numbers = DOCUMENT.verdict.model_copy(update={"noise_floor_ratio": 1.001})
    assert fault(DOCUMENT.model_copy(update={"verdict": numbers})) is EvidenceFault.CONTRADICTED


def test_a_document_read_back_is_the_same_document() -> None:
    again = EvidenceDocument.model_validate_json(DOCUMENT.model_dump_json())
    assert again == DOCUMENT
    assert fault(again) is None
    assert again.gates() == tuple((f"G{number}", True) for number in range(7))


def test_measuring_ends_when_nothing_can_change_any_more() -> None:
    evidence = DOCUMENT.evidence
    assert is_settled(evidence)
    assert evidence.timing is not None
    few = evidence.timing.model_copy(update={"blocks": 9})
    assert not is_settled(evidence.model_copy(update={"timing": few}))
    group = evidence.timing.groups[0].model_copy(update={"p_value": 0.2})
    open_still = evidence.timing.model_copy(update={"groups": (group,)})
    assert not is_settled(evidence.model_copy(update={"timing": open_still}))
    lost = proof(LOSER, incumbent=INCUMBENT.digest, plan="p", speedup=interval(0.9), at=NOW)
    assert is_settled(lost.evidence)
    failed = evidence.model_copy(
        update={"checks": (Check(gate="G6", reason=Reason.WRONG_OUTPUT),), "timing": None}
    )
    assert is_settled(failed)
    assert judge(failed).status is Status.REJECT


def altered(**changes: Any) -> dict[str, Any]:
    """A document's timing as JSON, with fields replaced."""
    assert DOCUMENT.evidence.timing is not None
    return DOCUMENT.evidence.timing.model_dump(mode="json") | changes


def shape(**changes: Any) -> dict[str, Any]:
    (one,) = altered()["shapes"]
    return dict(one) | changes


def group(**changes: Any) -> dict[str, Any]:
    (one,) = altered()["groups"]
    return dict(one) | changes


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "timing",
    [
        altered(groups=[group(members=[5])]),
        altered(groups=[group(members=[-1])]),
        altered(groups=[group(members=[0, 0])]),
        altered(groups=[group(), group()]),
        altered(groups=[]),
        altered(shapes=[shape(), shape()]),
        altered(shapes=[shape(axes={"M": 1}), shape(axes={"N": 1})]),
        altered(shapes=[shape(axes={"M": -1})]),
        altered(shapes=[shape(), shape(axes={"M": 2})], groups=[group()]),
        altered(groups=[group(p_value=NAN)]),
        altered(groups=[group(p_value=1.5)]),
        altered(noise_floor_ratio=INF),
        altered(noise_floor_ratio=NAN),
        altered(blocks=-1),
        altered(shapes=[shape(weight=INF)]),
        altered(shapes=[shape(weight=NAN)]),
        altered(shapes=[shape(incumbent_us=INF)]),
        altered(shapes=[shape(candidate_us=0.0)]),
        altered(shapes=[shape(floor_us=NAN)]),
        altered(shapes=[shape(speedup={"lower": 1, "point": 2, "upper": INF, "confidence": 0.9})]),
    ],
)
def test_timing_that_cannot_have_been_measured_is_no_timing(timing: dict[str, Any]) -> None:
    assert Timing.model_validate(altered())
    with pytest.raises(ValidationError):
        Timing.model_validate(timing)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": INF},
        {"axes": {"M": -4}},
        {"incumbent_us": [INF] * 48},
        {"candidate_us": [1.0] * 47},
        {"block": [0] * 49},
    ],
)
def test_raw_pairs_that_cannot_have_been_measured_are_none(changes: dict[str, Any]) -> None:
    assert DOCUMENT.final is not None
    body = DOCUMENT.final.model_dump(mode="json")
    assert RawTiming.model_validate(body)
    body["candidate"][0] |= changes
    with pytest.raises(ValidationError):
        RawTiming.model_validate(body)


def test_a_clone_of_other_shapes_is_no_noise_floor() -> None:
    assert DOCUMENT.final is not None
    body = DOCUMENT.final.model_dump(mode="json")
    body["clone"] = [*body["clone"], *body["clone"]]
    with pytest.raises(ValidationError):
        RawTiming.model_validate(body)


TRITON = Environment(
    arch="sm_90",
    driver="580.1",
    runtime="cuda 13.0",
    compiler="triton 3.9.0",
    torch="2.15.0",
    triton="3.9.0",
    numerics={"GPU_NAME": "H100"},
)
SERVER = ServerEnvironment(
    process="1",
    cpu="cpu:a",
    device="sm_90",
    device_name="H100",
    driver="580.1",
    runtime="cuda 13.0",
    torch="2.15.0",
    triton="3.9.0",
)


def test_a_server_like_the_lab_differs_in_nothing() -> None:
    assert differences(TRITON, SERVER) == ()
    assert differences(MACHINE, ServerEnvironment(process="1", cpu=MACHINE.arch)) == ()


@pytest.mark.parametrize(
    ("change", "what", "decides"),
    [
        ({"device": "sm_100"}, "arch", True),
        ({"device": ""}, "arch", True),
        ({"triton": "3.10.0"}, "triton", True),
        ({"triton": ""}, "triton", True),
        ({"device_name": "H200"}, "GPU_NAME", True),
        ({"numerics": {"TRITON_DEFAULT_FP_FUSION": "0"}}, "TRITON_DEFAULT_FP_FUSION", True),
        ({"driver": "590"}, "driver", False),
        ({"runtime": "cuda 12.8"}, "runtime", False),
        ({"torch": "2.14.0"}, "torch", False),
    ],
)
def test_what_makes_other_code_decides_and_the_rest_is_worth_a_line(
    change: dict[str, Any], what: str, decides: bool
) -> None:
    (found,) = differences(TRITON, replace(SERVER, **change))
    assert (found.what, found.decides) == (what, decides)
    assert found.what in str(found)


@pytest.mark.parametrize("change", [{"driver": ""}, {"runtime": ""}, {"torch": ""}])
def test_what_a_server_does_not_know_counts_only_where_it_decides(change: dict[str, Any]) -> None:
    assert differences(TRITON, replace(SERVER, **change)) == ()


def test_a_compiled_variant_asks_for_the_processor_alone() -> None:
    server = replace(SERVER, cpu="cpu:b", triton="1", torch="0")
    (found,) = differences(MACHINE, server)
    assert (found.what, found.decides, found.serving) == ("arch", True, "cpu:b")


def test_an_interpreter_fits_a_server_without_a_device() -> None:
    measured = Environment(arch="interpreter", triton="3.9.0")
    bare = ServerEnvironment(process="1", triton="3.9.0")
    assert differences(measured, bare) == ()
    assert differences(measured, replace(bare, device="sm_90"))
