"""Which generators there are, and what each is told of earlier experiments."""

from __future__ import annotations

from typing import get_args

import pytest

from retuned import catalog
from retuned.contract import Solution, Workload
from retuned.experiment.__main__ import GENERATORS, occasion_of
from retuned.lab.generators import Earlier
from retuned.lab.generators.inputs import SELF_CONTAINED, GeneratorInput
from retuned.ports import Finding
from retuned.settings import Proposer
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

NAME = "linear_w8_n512_k512"
ENTRY = catalog.get(NAME)
HERE, ELSEWHERE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
SHAPES = (Workload(definition=NAME, axes={"M": 64}),)


def plan(**more: object) -> ExperimentPlan:
    body = {
        "id": "p",
        "hypothesis": "h",
        "definition": NAME,
        "workloads": SHAPES,
        "incumbent": ENTRY.incumbent.digest,
        "environment": HERE,
    }
    return ExperimentPlan.model_validate({**body, **more})


def earlier(
    solution: Solution,
    *,
    status: Status = Status.REJECT,
    environment: str = HERE,
    incumbent: str = ENTRY.incumbent.digest,
    workloads: tuple[Workload, ...] = SHAPES,
) -> Earlier:
    speedup = Interval(lower=1.2, point=1.3, upper=1.4, confidence=0.99)
    shapes = (
        ShapeResult(
            axes={"M": 64}, weight=1.0, incumbent_us=13.0, candidate_us=10.0, speedup=speedup
        ),
    )
    verdict = Verdict(
        status=status,
        reason=Reason.FASTER if status is Status.PROMOTE else Reason.LOST_SEARCH,
        gate="G6",
        candidate=solution.digest,
        incumbent=incumbent,
        speedup=speedup,
        noise_floor_ratio=1.01,
        shapes=shapes,
    )
    found = Finding(solution=solution, verdict=verdict, seconds=1.0)
    return Earlier(finding=found, environment=environment, workloads=workloads)


def made(*told: Earlier, **more: object) -> GeneratorInput:
    return occasion_of(plan(**more), ENTRY.incumbent, cores=1, earlier=told)


def other() -> Solution:
    return ENTRY.solution("panels", {"P": 32, "TILE": 4, "CHUNK": 64, "VEC": 16, "THREADS": 1})


def test_every_generator_that_settings_may_name_can_be_made() -> None:
    assert set(get_args(Proposer)) == set(SELF_CONTAINED)
    assert set(SELF_CONTAINED) <= set(GENERATORS)
    for name in SELF_CONTAINED:
        assert SELF_CONTAINED[name](made()).name == name


def test_what_was_measured_here_against_the_same_incumbent_is_known() -> None:
    occasion = made(earlier(other()))
    assert [each.solution.digest for each in occasion.known] == [other().digest]
    assert occasion.foreign == ()
    search = GENERATORS["search"](occasion)
    found = search.propose(ENTRY.definition, SHAPES, history=[], count=5000)
    assert other().digest not in {each.digest for each in found}


@pytest.mark.parametrize(
    "told",
    [
        earlier(other(), environment=ELSEWHERE),
        earlier(other(), incumbent="sha256:" + "d" * 64),
        earlier(other(), workloads=(Workload(definition=NAME, axes={"M": 1}),)),
        earlier(other(), status=Status.PROMOTE),
    ],
    ids=["another environment", "another incumbent", "other shapes", "a winner"],
)
def test_everything_else_is_a_hint_that_is_measured_again(told: Earlier) -> None:
    occasion = made(told)
    assert occasion.known == ()
    assert occasion.foreign == (told,)
    found = GENERATORS["porting"](occasion).propose(ENTRY.definition, SHAPES, history=[], count=8)
    assert [each.digest for each in found] == [other().digest]


def test_the_incumbent_of_the_plan_is_what_others_are_measured_against() -> None:
    occasion = occasion_of(plan(incumbent=other().digest), other(), cores=1)
    assert occasion.tunable.incumbent.digest == other().digest
    found = GENERATORS["search"](occasion).propose(ENTRY.definition, SHAPES, history=[], count=5000)
    digests = {each.digest for each in found}
    assert other().digest not in digests
    assert ENTRY.incumbent.digest in digests
