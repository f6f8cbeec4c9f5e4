"""A table's way through the judge: real child processes, Triton's interpreter, real evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming
from tests.tunables.test_tune import environment, recipe, report

from retuned.clock import SystemClock
from retuned.contract import Environment, Workload
from retuned.errors import HarnessError, TemporaryError
from retuned.experiment.tunables import TunableLab, TunableTask
from retuned.lab.evidence_check import wrong_with
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan, TurnOutcome, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import variant_of
from retuned.stages.verdict import EvidenceDocument, Reason, Status

NAME = "tunable:autotune:_scaled:00000000"
HERE = Environment(arch="interpreter", triton="3.9.0")
INCUMBENT = variant_of(NAME, [], author="server", resolved="frozen")


def planned(*sizes: int) -> ExperimentPlan:
    belief = Hypothesis(
        id="h",
        definition=NAME,
        workloads=tuple(Workload(definition=NAME, axes={"elements": n}) for n in sizes),
        share=0.5,
        expected_gain_ratio=1.3,
        expected_saving=0.1,
        because="a test",
    )
    return plan(
        belief,
        incumbent=INCUMBENT.digest,
        environment=HERE.digest,
        budget=Budget(max_seconds=60.0),
    )


def laboratory(folder: Path, *recipes: dict[str, Any], **changed: Any) -> TunableLab:
    made = environment(folder)

    def task_of(_: ExperimentPlan) -> TunableTask:
        return TunableTask(
            report={**report(), "source": "sha256:" + "1" * 64},
            recipes=recipes,
            environment=made,
            measured_in=HERE,
            **changed,
        )

    return TunableLab(task_of, folder / "lab", clock=SystemClock())


@dataclass(frozen=True)
class Won:
    """One experiment from its plan to its finding."""

    lab: TunableLab
    plan: ExperimentPlan
    finding: Finding
    pauses: list[int]


@pytest.fixture(scope="module")
def won(tmp_path_factory: pytest.TempPathFactory) -> Won:
    pauses: list[int] = []

    @contextmanager
    def paused() -> Iterator[None]:
        pauses.append(1)
        yield
        pauses.append(-1)

    lab = laboratory(tmp_path_factory.mktemp("won"), recipe(), exclusive=paused)
    wanted = planned(1024)
    (found,) = lab.run(wanted, known={})
    return Won(lab, wanted, found, pauses)


def test_a_table_that_wins_is_promoted_by_evidence_that_can_be_signed(won: Won) -> None:
    found = won.finding
    assert (found.verdict.status, found.verdict.reason) == (Status.PROMOTE, Reason.FASTER)
    rules = json.loads(found.solution.sources[0].content)["rules"]
    assert rules[0]["config"]["kwargs"] == {"BLOCK": 256, "MODE": 0}
    assert found.verdict.evidence is not None
    raw = won.lab.evidence(found.verdict.evidence)
    assert raw is not None
    assert wrong_with(raw, won.plan, found, environment=HERE.digest) is None
    document = EvidenceDocument.model_validate_json(raw)
    assert (document.tried, document.environment) == (6, HERE)
    (turn,) = won.lab.turns(won.plan.id)
    assert (turn.tried, turn.correct) == (6, 2)
    built = won.lab.build(found.solution) / "table.json"
    assert built.read_text() == found.solution.sources[0].content


def test_times_are_taken_in_pauses_alone(won: Won) -> None:
    assert sum(won.pauses) == 0
    assert won.pauses.count(1) > 10


def test_what_was_judged_is_not_paid_again(won: Won) -> None:
    known = {won.finding.solution.digest: won.finding}
    assert list(won.lab.run(won.plan, known=known)) == []


def test_a_served_optimum_has_no_candidate_and_its_numbers(tmp_path: Path) -> None:
    best = recipe()["call"]["configs"][2]
    lab = laboratory(tmp_path, recipe(in_force=best))
    wanted = planned(1024)
    assert list(lab.run(wanted, known={})) == []
    (turn,) = lab.turns(wanted.id)
    assert "nothing-to-gain" in turn.because


def test_candidates_are_measured_against_the_table_in_force(tmp_path: Path) -> None:
    best = recipe()["call"]["configs"][2]
    rule = {"when": {"elements": [513, 1024]}, "config": best}
    lab = laboratory(tmp_path, recipe(), in_force=[rule])
    wanted = planned(1024)
    assert list(lab.run(wanted, known={})) == []
    (turn,) = lab.turns(wanted.id)
    assert "nothing-to-gain" in turn.because


def test_a_refusal_that_no_configuration_is_to_blame_for_ends_the_experiment(
    tmp_path: Path,
) -> None:
    class Refused(nullcontext[None]):
        def __enter__(self) -> None:
            raise HarnessError("the policy allows no pauses any more")

    lab = laboratory(tmp_path, recipe(), exclusive=Refused)
    with raises_naming(HarnessError, "pauses"):
        list(lab.run(planned(1024), known={}))


def test_a_class_without_a_described_launch_is_named(tmp_path: Path) -> None:
    lab, wanted = laboratory(tmp_path, recipe()), planned(64)
    assert list(lab.run(wanted, known={})) == []
    (turn,) = lab.turns(wanted.id)
    assert (turn.outcome, "not-described" in turn.because) == (TurnOutcome.FAILED, True)


def test_a_stop_ends_the_run_and_refuses_new_ones(tmp_path: Path) -> None:
    lab = laboratory(tmp_path, recipe())
    lab.stop()
    with pytest.raises(TemporaryError):
        list(lab.run(planned(1024), known={}))
